"""Tiny random models other than single-vector encoders, as real sentence-transformers checkpoints."""

from pathlib import Path

import torch
from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from tiny_models import write_bert
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM


def write_masked(folder: Path, seed: int = 0) -> Path:
    """Write a BERT with the head of a masked language model."""
    bert = write_bert(folder)
    torch.manual_seed(seed)
    BertForMaskedLM(BertConfig.from_pretrained(bert)).eval().save_pretrained(bert)
    return bert


def write_sparse(folder: Path, inference_free: bool = False) -> Path:
    """Write a SPLADE model. ``inference_free``: queries are word pieces with fixed weights."""
    bert = write_masked(folder.with_name(f"{folder.name}-bert"))
    transformer = Transformer(str(bert), transformer_task="fill-mask")
    modules = [transformer, SpladePooling("max")]
    if inference_free:
        word_weights = torch.rand(transformer.model.config.vocab_size, generator=torch.Generator().manual_seed(3))
        query_module = SparseStaticEmbedding(transformer.tokenizer, word_weights)
        modules = [Router.for_query_document([query_module], modules)]
    SparseEncoder(modules=modules, device="cpu").save_pretrained(str(folder))
    return folder


def write_multi_vector(folder: Path) -> Path:
    """Write a ColBERT that pads queries with [MASK] to 12 tokens, and ignores full stops in passages."""
    bert = write_bert(folder.with_name(f"{folder.name}-bert"))
    expansion = {"strategy": "min", "length": 12, "token": None, "attend": False}
    transformer = Transformer(str(bert), query_expansion=expansion)
    modules = [
        transformer,
        MultiVectorMask(skiplist_words=["。"]),
        Dense(32, 16, bias=False, module_input_name="token_embeddings", module_output_name="token_embeddings"),
        Normalize(module_input_name="token_embeddings"),
    ]
    prompts = {"query": "问", "document": "文"}
    MultiVectorEncoder(modules=modules, prompts=prompts, device="cpu").save_pretrained(str(folder))
    return folder


def write_static(folder: Path) -> Path:
    """Write a model with one random vector per token, without attention."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(write_bert(folder.with_name(f"{folder.name}-bert")))
    torch.manual_seed(0)
    module = StaticEmbedding(tokenizer, embedding_dim=16)
    SentenceTransformer(modules=[module], device="cpu").save_pretrained(str(folder))
    return folder


CHAT = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)


def write_language_model(folder: Path, template: str | None = CHAT) -> Path:
    """Write a Qwen2 with one token per byte, the words yes and no, and the chat template ``template``."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    byte_ids = {byte: number for number, byte in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(byte_ids, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|pad|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(["yes", "no"])
    fast_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|im_end|>", model_max_length=2048
    )
    fast_tokenizer.chat_template = template
    fast_tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(fast_tokenizer),
        num_key_value_heads=2,
        initializer_range=0.5,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
    )
    Qwen2ForCausalLM(config).eval().save_pretrained(folder)
    return folder
