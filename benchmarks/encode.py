"""Compare the encoder's speed with SentenceTransformer.encode_document and the machine's matrix rate.

The model is --model, or a random BERT of --layers and --width with a vocabulary of characters. The texts are the first
passages of --release, or random texts of log-normal length (sigma 0.6) with --characters on average. Both encoders use
the same texts and the same precision, and take turns. Figures are medians of --repeats after one warm-up.

The matrix rate is the speed of a large square matrix product in the same precision, measured here. An encoder's
operations per second, without those for padding, are shown as a share of the matrix rate.

Example:

  python benchmarks/encode.py --texts 20000 --layers 12 --width 768 --device cuda --json encode.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from baselines.retrieve.devices import DTYPES, dtype_of  # noqa: E402
from baselines.retrieve.encoder import Encoder  # noqa: E402
from baselines.retrieve.models import open_encoder  # noqa: E402
from baselines.retrieve.settings import ModelSettings  # noqa: E402
from builders.store.reader import open_release  # noqa: E402

CHARACTERS = [chr(0x4E00 + number) for number in range(6_000)]


def random_model(folder: Path, layers: int, width: int) -> Path:
    """Create a BERT with random weights and mean pooling that reads 384 tokens of a passage."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import BertConfig, BertModel, BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *CHARACTERS]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    BertTokenizer(str(folder / "vocab.txt"), model_max_length=512).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
        intermediate_size=4 * width,
    )
    BertModel(config).save_pretrained(folder)
    module = Transformer(str(folder), query_length=32, document_length=384)
    model = SentenceTransformer(modules=[module, Pooling(width, "mean")], similarity_fn_name="dot", device="cpu")
    model.save_pretrained(str(folder / "model"))
    return folder / "model"


def random_texts(count: int, characters: int) -> list[str]:
    rng = random.Random(1)
    lengths = np.random.default_rng(1).lognormal(np.log(characters) - 0.18, 0.6, count).astype(int)
    return ["".join(rng.choices(CHARACTERS, k=max(5, length))) for length in lengths.tolist()]


def release_texts(path: Path, count: int) -> list[str]:
    batches = open_release(path).batches("corpus", "corpus", ["text"])
    return list(islice((text for batch in batches for text in batch.column("text").to_pylist()), count))


def multiplications(model: Any, lengths: list[int]) -> float:
    """Return the floating-point operations for texts of the given lengths in tokens: linear layers and attention."""
    transformer = model.transformers_model
    linear = sum(
        module.weight.numel()
        for name, module in transformer.named_modules()
        if isinstance(module, torch.nn.Linear) and "pooler" not in name
    )
    config = transformer.config
    attention = 4 * config.num_hidden_layers * config.hidden_size
    return float(sum(2 * linear * length + attention * length * length for length in lengths))


def seconds(function: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    """Return the seconds and the result of a call."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    result = function()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin, result


def matrix_rate(device: torch.device, dtype: torch.dtype, repeats: int) -> float:
    """Return the operations per second of a square matrix product."""
    size = 8_192 if device.type == "cuda" else 2_048
    one, other = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    times = [seconds(lambda: one @ other, device)[0] for _ in range(repeats + 2)][2:]
    return 2 * size**3 / statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="hub name or folder (default: a random BERT)")
    parser.add_argument("--layers", type=int, default=4, help="layers of the random BERT (default: 4)")
    parser.add_argument("--width", type=int, default=256, help="width of the random BERT (default: 256)")
    parser.add_argument("--release", type=Path, help="release with the texts (default: random texts)")
    parser.add_argument("--texts", type=int, default=2_000, help="number of texts (default: 2000)")
    parser.add_argument("--characters", type=int, default=350, help="average length of a random text (default: 350)")
    available = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=available, help="default: cuda if available")
    parser.add_argument("--dtype", choices=["auto", *DTYPES], default="auto", help="precision (default: auto)")
    parser.add_argument("--batch-size", type=int, help="SentenceTransformer's (default: 256 on a GPU, 32 on a CPU)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores")
    parser.add_argument("--repeats", type=int, default=5, help="runs for each figure (default: 5)")
    parser.add_argument("--json", type=Path, help="file for the figures (default: no file)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    dtype = dtype_of(args.dtype, device.type)
    texts = release_texts(args.release, args.texts) if args.release else random_texts(args.texts, args.characters)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        name = args.model or str(random_model(Path(folder), args.layers, args.width))
        model = open_encoder(ModelSettings(name), str(device), dtype)
    encoder = Encoder(model, "document")
    batch = args.batch_size or (256 if device.type == "cuda" else 32)
    cosine = model.similarity_fn_name == "cosine"
    ways: dict[str, Callable[[], Any]] = {
        "ours": lambda: encoder.encode(texts),
        "sentence-transformers": lambda: model.encode_document(
            texts, batch_size=batch, normalize_embeddings=cosine, show_progress_bar=False
        ),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    found: dict[str, Any] = {}
    for _ in range(args.repeats + 1):
        for way, function in ways.items():
            took, found[way] = seconds(function, device)
            times[way].append(took)
    medians = {way: statistics.median(each[1:]) for way, each in times.items()}
    lengths = [min(384, len(each)) for each in model.tokenizer(texts, truncation=True, max_length=384)["input_ids"]]
    needed, rate = multiplications(model, lengths), matrix_rate(device, DTYPES[dtype], args.repeats)
    largest = np.abs(found["ours"].astype(np.float32) - found["sentence-transformers"].astype(np.float32)).max()
    result = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        "cores": len(os.sched_getaffinity(0)),
        "threads": args.threads,
        "load_before": round(load, 1),
        "versions": {
            "python": platform.python_version(),
            **{each: version(each) for each in ("torch", "sentence-transformers", "transformers")},
        },
        "model": {
            "layers": model.transformers_model.config.num_hidden_layers,
            "width": model.transformers_model.config.hidden_size,
            "dtype": dtype,
        },
        "texts": len(texts),
        "tokens_a_text": round(statistics.mean(lengths), 1),
        "repeats": args.repeats,
        "seconds": {way: round(each, 3) for way, each in medians.items()},
        "passages_a_second": {way: round(len(texts) / each, 1) for way, each in medians.items()},
        "ratio": round(medians["sentence-transformers"] / medians["ours"], 3),
        "largest_difference": float(largest),
        "matrix_rate_tflops": round(rate / 1e12, 3),
        "share_of_matrix_rate": {way: round(needed / each / rate, 3) for way, each in medians.items()},
    }
    text = json.dumps(result, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
