"""Checks of the code that runs on a GPU, for the part `checks` of gpu.py."""

import contextlib
import importlib.util
import io
import itertools
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import command, timed
from gpu_common import Rows, SavedRows, Setting, Step, check, passages_of, unit_vectors, write_vectors
from releases import QUESTIONS, TEXTS, make_release, md5, tables
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
from sentence_transformers.util import dot_score
from tiny_kinds import write_multi_vector, write_sparse
from tiny_models import write_cross, write_dual

from baselines.core.settings import ModelSettings
from baselines.measure.measures import MRR_DEPTH, first_rank, reciprocal_rank
from baselines.retrieve import exact_search
from baselines.retrieve.devices import Work, compile_transformers, computes_bf16, devices_of, dtype_of
from baselines.retrieve.encoder import Prefetcher, TextEncoder
from baselines.retrieve.models import open_encoder
from baselines.retrieve.search_engines import FaissEngine
from baselines.retrieve.torch_engine import TorchEngine
from baselines.retrieve.vector_index import open_retriever
from builders.store.reader import open_release


def cosines(vectors: Any, reference: Any) -> Any:
    """Return the cosine of each row of ``vectors`` with the same row of ``reference``, computed in 64 bits."""
    wide_vectors = np.asarray(vectors, np.float64)
    wide_reference = np.asarray(reference, np.float64)
    products = (wide_vectors * wide_reference).sum(1)
    return products / (np.linalg.norm(wide_vectors, axis=1) * np.linalg.norm(wide_reference, axis=1))


@contextlib.contextmanager
def small_release() -> Iterator[tuple[Path, Path]]:
    """Yield a temporary folder and the tests' release in it."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name), make_release(Path(name) / "release", tables(TEXTS))


def check_devices(setting: Setting) -> Rows:
    """Check that the project finds the GPU, and report its automatic precision."""
    devices = devices_of(None)
    has_right_device = devices[0] != "cpu" or not setting.cuda
    measured = f"{devices}, auto is {dtype_of('auto', devices[0])}, computes bf16: {computes_bf16(setting.device)}"
    if setting.cuda:
        measured += f", {torch.cuda.get_device_name()}, capability {torch.cuda.get_device_capability()}"
    return [check("devices", has_right_device, measured)]


def check_pinned(setting: Setting) -> Rows:
    """Compare prefetched tokens with the model's own tokens. On a GPU, check that the tokens are in pinned memory.

    Tokens are prefetched by a thread, and then by two processes.
    """
    model = SentenceTransformer(str(setting.model), device="cpu")
    texts = passages_of(setting, 64)
    batches = [texts[start : start + 16] for start in range(0, 64, 16)]
    model_tokens = [model.preprocess(batch_texts)["input_ids"] for batch_texts in batches]
    rows = SavedRows()
    for processes in (0, 2):
        prefetcher = Prefetcher(model, {}, processes, pin=setting.cuda)
        prefetched_tokens = [features["input_ids"] for features in prefetcher(batches)]
        is_same = all(map(torch.equal, model_tokens, prefetched_tokens))
        is_pinned = setting.cuda and all(tokens.is_pinned() for tokens in prefetched_tokens)
        is_right = is_same and len(prefetched_tokens) == len(batches) and is_pinned == setting.cuda
        measured = f"same tokens: {is_same}, pinned: {is_pinned}"
        rows.append(check(f"prefetched tokens, {processes} processes", is_right, measured))
    return rows


def check_precision(setting: Setting) -> Rows:
    """Compare fp32, fp16 and bf16 on the device with fp32 on the CPU, by cosines and by MRR@10."""
    release = open_release(setting.release)
    passage_count = setting.of(1_500, 40)
    # The questions, their last positives, and further passages of the release.
    qrels = release.table("qrels", "dev", ["query-id", "corpus-id"]).to_pydict()
    positive_ids = dict(zip(qrels["query-id"], qrels["corpus-id"], strict=True))
    query_ids = list(positive_ids)[: setting.of(300, 2)]
    query_texts = release.texts("queries", "dev", query_ids)
    queries = [query_texts[query_id] for query_id in query_ids]
    positive_texts = release.texts("corpus", "corpus", {positive_ids[query_id] for query_id in query_ids})
    texts = list(positive_texts.values())
    known_texts = set(texts)
    for text in passages_of(setting, passage_count):
        if text not in known_texts:
            known_texts.add(text)
            texts.append(text)
    texts = texts[:passage_count]
    rows_of_positives = {passage_id: row for row, passage_id in enumerate(positive_texts)}
    answer_rows = [rows_of_positives[positive_ids[query_id]] for query_id in query_ids]

    def encode(device: str, dtype: str) -> tuple[Any, Any]:
        """Return the vectors of the queries and of the passages."""
        model = open_encoder(ModelSettings(str(setting.model), max_length=setting.of(512, 64)), device, dtype)
        return TextEncoder(model, "query").encode(queries), TextEncoder(model, "document").encode(texts)

    def mrr(query_vectors: Any, passage_vectors: Any) -> float:
        """Return MRR@10 in percent. A query's only positive is its passage of ``answer_rows``."""
        scores = query_vectors.astype(np.float32) @ passage_vectors.astype(np.float32).T
        best_rows = np.argsort(-scores, axis=1, kind="stable")[:, :MRR_DEPTH].astype(str).tolist()
        first_ranks = [first_rank(rows, {str(answer)}) for rows, answer in zip(best_rows, answer_rows, strict=True)]
        return 100 * statistics.mean(reciprocal_rank(rank) for rank in first_ranks)

    reference_queries, reference_passages = encode("cpu", "fp32")
    reference_mrr = mrr(reference_queries, reference_passages)
    rows = SavedRows()
    for dtype, lowest_cosine in (("fp32", 0.99999), ("fp16", 0.9999), ("bf16", 0.999)):
        query_vectors, passage_vectors = encode(setting.device, dtype)
        similarity = cosines(passage_vectors, reference_passages)
        device_mrr = mrr(query_vectors, passage_vectors)
        change = device_mrr - reference_mrr
        is_near = bool(similarity.min() > lowest_cosine and abs(change) < 1)
        measured = f"cosine with the CPU's fp32: lowest {similarity.min():.6f}, mean {similarity.mean():.6f}; "
        measured += f"MRR@10 {device_mrr:.2f} ({change:+.2f})"
        rows.append(check(f"encode in {dtype}", is_near, measured))
    return rows


def check_search(setting: Setting) -> Rows:
    """Compare the engine's candidates and final hits with products in 64 bits."""
    row_count = setting.of(100_000, 3_000)
    width = setting.of(768, 64)
    queries = unit_vectors(9, setting.of(200, 20), width)
    with tempfile.TemporaryDirectory() as name:
        vectors = write_vectors(Path(name), row_count, width, setting.device)
        exact_scores = queries.astype(np.float64) @ vectors.all().astype(np.float64).T
        engine = TorchEngine(queries, 100, setting.device)
        candidate_scores, candidate_rows = exact_search.find_candidates(vectors, [engine], 100)
        exact_of_candidates = np.take_along_axis(exact_scores, candidate_rows, 1)
        largest_error = float(np.abs(candidate_scores - exact_of_candidates).max())
        allowed_error = width * exact_search.ERROR_PER_PRODUCT * vectors.longest
        engines = [TorchEngine(queries, 100, setting.device)]
        hits = list(exact_search.search_unsorted(vectors, queries, engines, 50, 100, lambda: np.arange(row_count)))
    best_rows = np.argsort(-exact_scores, axis=1, kind="stable")[:, :50]
    is_same = _have_same_rows([rows for rows, _ in hits], best_rows)
    measured = f"same top 50 of {row_count:,} as in 64 bits: {is_same}; "
    measured += f"error of scores {largest_error:.1e} (allowed: {allowed_error:.1e})"
    return [check("TorchEngine", is_same and largest_error < allowed_error, measured)]


def _have_same_rows(rows_by_query: Any, reference_rows: Any) -> bool:
    """Return True if both have the same rows for each query, in any order."""
    for rows, reference in zip(rows_by_query, reference_rows, strict=True):
        if set(rows.tolist()) != set(reference.tolist()):
            return False
    return True


def check_kinds(setting: Setting) -> Rows:
    """Compare late interaction and a sparse encoder on the device with the CPU, in fp32."""
    rows = SavedRows()
    questions = list(itertools.chain.from_iterable(QUESTIONS.values()))
    with small_release() as (folder, path):
        release = open_release(path)
        for kind, write_model in (("multi-vector", write_multi_vector), ("sparse", write_sparse)):
            model = str(write_model(folder / kind))
            hits_by_device = []
            for number, device in enumerate(("cpu", setting.device)):
                retriever = open_retriever(ModelSettings(model), Work((device,), "fp32"), kind)
                index = retriever.index(release, "corpus", folder / f"{kind}{number}")
                hits = retriever.search(release, "corpus", index, questions, 3)
                hits_by_device.append(list(itertools.chain.from_iterable(hits)))
            # Passages may be exchanged if their scores are nearly equal.
            is_same = bool(hits_by_device[0])
            largest_error = 0.0
            for (cpu_id, cpu_score), (device_id, device_score) in zip(*hits_by_device, strict=True):
                score_error = abs(cpu_score - device_score)
                largest_error = max(largest_error, score_error)
                is_same = is_same and (cpu_id == device_id or score_error < 1e-3)
            measured = f"{len(hits_by_device[0])} hits, largest error of scores {largest_error:.1e}"
            rows.append(check(kind, is_same and largest_error < 1e-2, measured))
    return rows


def check_compile(setting: Setting) -> Rows:
    """Compare a model's embeddings before and after compilation."""
    texts = passages_of(setting, setting.of(512, 16))
    dtype = "fp16" if setting.cuda else "fp32"
    model = open_encoder(ModelSettings(str(setting.model), max_length=128), setting.device, dtype)
    plain_vectors = TextEncoder(model, "document").encode(texts)
    compile_transformers(model)
    seconds, compiled_vectors = timed(lambda: TextEncoder(model, "document").encode(texts), setting.device)
    lowest_cosine = float(cosines(compiled_vectors, plain_vectors).min())
    measured = f"lowest cosine with uncompiled embeddings: {lowest_cosine:.6f}; {seconds:.0f} s to compile and encode"
    return [check("torch.compile", lowest_cosine > 0.9999, measured)]


def check_nccl(setting: Setting) -> Rows:
    """Compare the loss in a process group of one, which gathers over devices, with the loss without a group."""
    model = SentenceTransformer(str(setting.model), device=setting.device).eval()
    texts = passages_of(setting, 16)
    features = []
    for column_texts in (texts[:8], texts[8:]):
        tensors = {}
        for key, value in model.preprocess(column_texts).items():
            if torch.is_tensor(value):
                tensors[key] = value.to(setting.device)
        features.append(tensors)

    def loss_and_gradient(gather: bool) -> tuple[float, float]:
        """Return the loss, and the norm of its gradient."""
        model.zero_grad()
        loss = CachedMultipleNegativesRankingLoss(model, 50.0, dot_score, 4, gather_across_devices=gather)
        value = loss([dict(tensors) for tensors in features], None)
        value.backward()
        norms = [weights.grad.norm() for weights in model.parameters() if weights.grad is not None]
        return value.item(), float(torch.stack(norms).norm())

    loss_alone, gradient_alone = loss_and_gradient(gather=False)
    backend = "nccl" if setting.cuda else "gloo"
    with tempfile.TemporaryDirectory() as name:
        torch.distributed.init_process_group(backend, init_method=f"file://{name}/store", rank=0, world_size=1)
        torch.distributed.barrier()
        loss_in_group, gradient_in_group = loss_and_gradient(gather=True)
        torch.distributed.destroy_process_group()
    is_same_loss = abs(loss_alone - loss_in_group) <= 1e-3 * abs(loss_alone)
    is_same_gradient = abs(gradient_alone - gradient_in_group) <= 1e-3 * abs(gradient_alone)
    measured = f"loss {loss_alone:.6f} and {loss_in_group:.6f}, "
    measured += f"gradient's norm {gradient_alone:.4f} and {gradient_in_group:.4f}"
    return [check(f"{backend}, one process", is_same_loss and is_same_gradient, measured)]


def check_commands(setting: Setting) -> Rows:
    """Run encode, search and rerank with --device."""
    rows = SavedRows()
    with small_release() as (folder, release):
        run = folder / "dense.run"
        reranked = folder / "reranked.run"
        passages = folder / "passages"
        options: dict[str, list[object]] = {
            "encode": ["--model", setting.model, "--out", passages],
            "search": ["--model", setting.model, "--passages", passages, "--engine", "torch", "--out", run],
            "rerank": ["--model", write_cross(folder / "cross"), "--run", run, "--out", reranked],
        }
        for verb, words in options.items():
            if verb != "encode":
                words += ["--split", "dev"]
            exit_code = command("baselines", verb, "--release", release, "--device", setting.device, *words)
            rows.append(check(f"{verb} --device {setting.device}", exit_code == 0, f"exit code {exit_code}"))
        rows[-1]["seen"] += f", {len(reranked.read_text().splitlines())} lines"
    return rows


def check_training(setting: Setting) -> Rows:
    """Compare a killed and resumed training with an uninterrupted training. Also train in bf16 and with compilation."""
    rows = SavedRows()
    with small_release() as (folder, release):
        negative_ids = [md5(text) for text in TEXTS[-2:]]
        negatives = folder / "negatives.jsonl"
        with open(negatives, "w", encoding="utf-8") as file:
            for question in QUESTIONS["train"]:
                file.write(json.dumps({"query-id": md5(question), "negative-ids": negative_ids}) + "\n")
        start = write_dual(folder / "start")
        device = "cuda" if setting.cuda else "cpu"
        options: list[object] = ["--release", release, "--negatives", negatives, "--start", start, "--device", device]
        values = [f"train.max_steps={setting.of(60, 6)}", f"train.saves={setting.of(6, 3)}", "train.epochs=1000"]
        values += ["train.batch=4", "train.precision=fp32", "train.evaluations=0", "data.negatives_per_positive=2"]
        values += ["data.passage_length=64", "model.pooling=", "model.similarity="]
        options += [f"--set={value}" for value in values]

        def begin_training(out: str, *further_options: str) -> subprocess.Popen[bytes]:
            """Begin a training whose output is the folder ``out``, or resume this training."""
            # A new process, because a forked process could not use PyTorch's threads.
            words = ["train", "de-bm25-neg-scratch", *options, "--out", folder / out, *further_options]
            return subprocess.Popen([sys.executable, "-m", "baselines", *map(str, words)])

        def read_weights(out: str) -> torch.Tensor:
            """Return all weights of a training as one vector."""
            weights_path = next((folder / out).rglob("model.safetensors"))
            return torch.cat([tensor.flatten() for tensor in load_file(weights_path).values()]).float()

        def weight_difference(out: str) -> float:
            """Return the largest difference of weights from the uninterrupted training in fp32."""
            return float((read_weights("through") - read_weights(out)).abs().max())

        # Begin all trainings, and kill one as soon as it has saved a state.
        uninterrupted = begin_training("through")
        killed = begin_training("killed")
        changes = ["train.precision=bf16"]
        if not setting.small:
            changes.append("train.compile=true")
        changed_trainings = {change: begin_training(change, f"--set={change}") for change in changes}
        while killed.poll() is None and not list((folder / "killed.training").glob("checkpoint-*/*.json")):
            time.sleep(0.01)
        killed.kill()
        was_killed = killed.wait() == -signal.SIGKILL
        resumed = begin_training("killed")
        # Both trainings must have ended before their folder is read and removed.
        exit_codes = [resumed.wait(), uninterrupted.wait()]
        both_succeeded = exit_codes == [0, 0]
        difference = weight_difference("killed") if both_succeeded else -1.0
        is_same = was_killed and both_succeeded and 0 <= difference < 1e-3
        measured = f"killed: {was_killed}; both succeeded: {both_succeeded}; "
        measured += f"largest difference of weights {difference:.1e}"
        rows.append(check("train, SIGKILL, train again", is_same, measured))

        for change, process in changed_trainings.items():
            exit_code = process.wait()
            measured = f"exit code {exit_code}"
            if exit_code == 0:
                measured += f", largest difference of weights from fp32 {weight_difference(change):.1e}"
            rows.append(check(f"train {change}", exit_code == 0, measured))
    return rows


def check_memory(setting: Setting) -> Rows:
    """Limit a command to 0.4 % of the GPU's memory. Check that the command fails with one line on stderr."""
    if not setting.cuda:
        return [check("out of memory", True, "no GPU")]
    torch.cuda.set_per_process_memory_fraction(0.004)
    error_output = io.StringIO()
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(error_output):
        words = ["encode", "--release", setting.release, "--model", setting.model, "--out", Path(name) / "out"]
        words += ["--device", setting.device, "--batch-tokens", 10_000_000, "--quiet"]
        exit_code = command("baselines", *words)
    error_lines = error_output.getvalue().strip().splitlines() or [""]
    measured = f"exit code {exit_code}, {len(error_lines)} lines: {error_lines[-1][:120]}"
    return [check("out of memory", exit_code == 1 and len(error_lines) == 1, measured)]


def check_faiss(setting: Setting) -> Rows:
    """Compare FAISS's hits with products in 64 bits."""
    if not importlib.util.find_spec("faiss"):
        return [check("FAISS", True, "not installed")]
    import faiss

    queries = unit_vectors(1, 20, 64)
    passages = unit_vectors(2, 5_000, 64)
    engine = FaissEngine(queries, 10, setting.device)
    engine.add(0, engine.prepare(passages))
    _, engine_rows = engine.best()
    exact_scores = queries.astype(np.float64) @ passages.astype(np.float64).T
    best_rows = np.argsort(-exact_scores, axis=1)[:, :10]
    is_on_gpu = hasattr(faiss, "StandardGpuResources") and setting.cuda
    measured = f"{faiss.__version__}, on a GPU: {is_on_gpu}"
    return [check("FAISS", _have_same_rows(engine_rows, best_rows), measured)]


STEPS: list[Step] = [
    (check_devices, 30),
    (check_pinned, 40),
    (check_precision, 90),
    (check_search, 40),
    (check_kinds, 40),
    (check_compile, 90),
    (check_nccl, 40),
    (check_commands, 60),
    (check_training, 150),
    (check_memory, 40),
    (check_faiss, 30),
]
