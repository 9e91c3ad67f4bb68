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
    texts: list[str] = []
    for batch in open_release(path).batches("corpus", "corpus", ["text"]):
        texts += batch.column("text").to_pylist()
        if len(texts) >= count:
            break
    return texts[:count]


def count_tokens(encoder: TextEncoder, texts: list[str]) -> list[int]:
    """Return the number of tokens that the encoder reads of each text, in the order of the encoder's batches.

    The tokens of a prompt count. Padding, and tokens beyond the model's limit, do not count.
    """
    lengths: list[int] = []
    for _, batch_lengths in encoder.batches(texts, lambda features: features["attention_mask"].sum(dim=1).tolist()):
        lengths += batch_lengths
    return lengths


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
    has_cuda = args.device.startswith("cuda")
    dtype = dtype_of(args.dtype, args.device)
    if args.release:
        texts = release_texts(args.release, args.texts)
    else:
        texts = random_texts(random_lengths(args.texts, args.characters))
    figures = machine("torch", "sentence-transformers", "transformers")
    with tempfile.TemporaryDirectory() as folder:
        model_name = args.model
        if not model_name:
            model_name = f"{folder}/model"
            dual_encoder(Path(folder) / "bert", args.layers, args.width).save_pretrained(model_name)
        model = open_encoder(ModelSettings(model_name), args.device, dtype)
    encoder = TextEncoder(model, "document")
    batch_size = args.batch_size or (256 if has_cuda else 32)
    uses_cosine = model.similarity_fn_name == "cosine"
    ways: dict[str, Callable[[], Any]] = {
        "ours": lambda: encoder.encode(texts),
        "sentence-transformers": lambda: model.encode_document(
            texts, batch_size=batch_size, normalize_embeddings=uses_cosine, show_progress_bar=False
        ),
    }
    medians, vectors_by_way = in_turns(ways, args.repeats, args.device)

    # The share of the matrix rate: operations of the texts without padding, relative to products of large matrices.
    lengths = count_tokens(encoder, texts)
    operations = forward_operations(model, lengths)
    rate = matrix_rate(args.device, dtype)
    own_vectors = vectors_by_way["ours"].astype(np.float32)
    library_vectors = vectors_by_way["sentence-transformers"].astype(np.float32)

    device_name = platform.processor() or "cpu"
    if has_cuda:
        device_name = torch.cuda.get_device_name(args.device)
    config = model.transformers_model.config
    figures["device"] = device_name
    figures["threads"] = args.threads
    figures["model"] = {"layers": config.num_hidden_layers, "width": config.hidden_size, "dtype": dtype}
    figures["texts"] = len(texts)
    figures["tokens_a_text"] = round(statistics.mean(lengths), 1)
    figures["repeats"] = args.repeats
    figures["seconds"] = {way: round(seconds, 3) for way, seconds in medians.items()}
    figures["passages_a_second"] = {way: round(len(texts) / seconds, 1) for way, seconds in medians.items()}
    figures["ratio"] = round(medians["sentence-transformers"] / medians["ours"], 3)
    figures["largest_difference"] = float(np.abs(own_vectors - library_vectors).max())
    figures["matrix_rate_tflops"] = round(rate / 1e12, 3)
    figures["share_of_matrix_rate"] = {way: round(operations / seconds / rate, 3) for way, seconds in medians.items()}
    write_json(args.json, figures, show=True)


if __name__ == "__main__":
    main()
