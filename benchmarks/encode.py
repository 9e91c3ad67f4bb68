"""Compare the encoder's speed with SentenceTransformer.encode_document and with the machine's matrix rate.

The model is --model, or a random BERT with --layers and --width. The texts are the first passages of --release, or
random texts with --characters on average. The encoders use the same texts and the same precision, and take turns.
Figures are medians of --repeats after one warm-up.

The matrix rate is the speed of a large square matrix product in the same precision. The output has the share of the
matrix rate that each encoder reaches. Operations for padding are not counted.

Example:

  python benchmarks/encode.py --texts 20000 --layers 12 --width 768 --device cuda --json encode.json
"""

import platform
import statistics
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import in_turns, machine, matrix_rate, parser_of, write_json
from models import dual_encoder, forward_operations, random_lengths, random_texts

from baselines.core.settings import ModelSettings
from baselines.retrieve.devices import DTYPES, dtype_of
from baselines.retrieve.encoder import TextEncoder
from baselines.retrieve.models import open_encoder
from builders.store.reader import open_release


def release_texts(path: Path, count: int) -> list[str]:
    """Return the first ``count`` passages of a release."""
    batches = open_release(path).batches("corpus", "corpus", ["text"])
    return list(islice((text for batch in batches for text in batch.column("text").to_pylist()), count))


def main() -> None:
    parser = parser_of(__doc__, "--threads", "--repeats", "--json")
    parser.add_argument("--model", help="hub name or folder (default: a random BERT)")
    parser.add_argument("--layers", type=int, default=4, help="layers of the random BERT (default: 4)")
    parser.add_argument("--width", type=int, default=256, help="width of the random BERT (default: 256)")
    parser.add_argument("--release", type=Path, help="release with the texts (default: random texts)")
    parser.add_argument("--texts", type=int, default=2_000, help="number of texts (default: 2000)")
    parser.add_argument("--characters", type=int, default=350, help="average length of a random text (default: 350)")
    available = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=available, help="default: cuda if available")
    parser.add_argument("--dtype", choices=["auto", *DTYPES], default="auto", help="precision (default: auto)")
    parser.add_argument("--batch-size", type=int, help="of SentenceTransformer (default: 256 on a GPU, 32 on a CPU)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    cuda = args.device.startswith("cuda")
    dtype = dtype_of(args.dtype, args.device)
    if args.release:
        texts = release_texts(args.release, args.texts)
    else:
        texts = random_texts(random_lengths(args.texts, args.characters))
    about = machine("torch", "sentence-transformers", "transformers")
    with tempfile.TemporaryDirectory() as folder:
        name = args.model or f"{folder}/model"
        if not args.model:
            dual_encoder(Path(folder) / "bert", args.layers, args.width).save_pretrained(name)
        model = open_encoder(ModelSettings(name), args.device, dtype)
    encoder = TextEncoder(model, "document")
    batch = args.batch_size or (256 if cuda else 32)
    cosine = model.similarity_fn_name == "cosine"
    ways: dict[str, Callable[[], Any]] = {
        "ours": lambda: encoder.encode(texts),
        "sentence-transformers": lambda: model.encode_document(
            texts, batch_size=batch, normalize_embeddings=cosine, show_progress_bar=False
        ),
    }
    medians, found = in_turns(ways, args.repeats, args.device)
    lengths = [min(384, len(each)) for each in model.tokenizer(texts, truncation=True, max_length=384)["input_ids"]]
    needed, rate = forward_operations(model, lengths), matrix_rate(args.device, dtype)
    vectors = [each.astype(np.float32) for each in found.values()]
    config = model.transformers_model.config
    figures = {
        **about,
        "device": torch.cuda.get_device_name(args.device) if cuda else platform.processor() or "cpu",
        "threads": args.threads,
        "model": {"layers": config.num_hidden_layers, "width": config.hidden_size, "dtype": dtype},
        "texts": len(texts),
        "tokens_a_text": round(statistics.mean(lengths), 1),
        "repeats": args.repeats,
        "seconds": {way: round(each, 3) for way, each in medians.items()},
        "passages_a_second": {way: round(len(texts) / each, 1) for way, each in medians.items()},
        "ratio": round(medians["sentence-transformers"] / medians["ours"], 3),
        "largest_difference": float(np.abs(vectors[0] - vectors[1]).max()),
        "matrix_rate_tflops": round(rate / 1e12, 3),
        "share_of_matrix_rate": {way: round(needed / each / rate, 3) for way, each in medians.items()},
    }
    write_json(args.json, figures, show=True)


if __name__ == "__main__":
    main()
