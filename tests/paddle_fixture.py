"""A tiny ERNIE in Paddle: its parameters, one file each, and what Paddle computes with them. Not a test.

Needs paddlepaddle 2.6.2 (here: Python 3.10 to 3.12) in an environment of its own, and nothing of this project:

    python -m venv /tmp/paddle && /tmp/paddle/bin/python -m pip install paddlepaddle==2.6.2 'numpy<2' setuptools
    /tmp/paddle/bin/python tests/paddle_fixture.py OUT [--positions 513 --hidden 24 --layers 3 --seed 1]

OUT has what the official archives have (`dual_params/`, `cross_params/`, `ernie_config.json`, `vocab.txt`) and
`expected.json`: texts, and the last layer's [CLS] or the probability of class 1 that Paddle gives for them.
`tests/paddle_fixture.tar.xz` is OUT with the values that are the defaults here (tar cJf FILE -C OUT .).
"""

import argparse
import json
import pathlib

import numpy as np
import paddle

CHARACTERS = "高铁票可以提前买水饺子煮，。"
VOCABULARY = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", *CHARACTERS, "[UNK]"]
QUERIES = ["高铁票 可以提前买", "煮饺子", "买票？"]
PASSAGES = ["高铁票可以提前买。", "煮水，煮饺子，饺子可以煮。", "票 龙"]


class Ernie:
    """ERNIE 1.0 as a static graph: embeddings, layer norm, then post-layer-norm transformer layers with relu."""

    def __init__(self, prefix, config):
        self.prefix, self.config = prefix, config

    def name(self, name):
        return paddle.ParamAttr(name=self.prefix + name)

    def norm(self, states, name):
        return paddle.static.nn.layer_norm(
            states,
            begin_norm_axis=2,
            param_attr=self.name(name + "_layer_norm_scale"),
            bias_attr=self.name(name + "_layer_norm_bias"),
        )

    def dense(self, states, size, name, activation=None):
        return paddle.static.nn.fc(
            states,
            size,
            num_flatten_dims=2,
            activation=activation,
            weight_attr=self.name(name + ".w_0"),
            bias_attr=self.name(name + ".b_0"),
        )

    def heads(self, states):
        count, size = self.config["num_attention_heads"], self.config["hidden_size"]
        return paddle.transpose(paddle.reshape(states, [0, 0, count, size // count]), [0, 2, 1, 3])

    def states(self, tokens, positions, types, mask):
        config = self.config
        size = config["hidden_size"]
        states = 0
        for ids, rows, name in (
            (tokens, config["vocab_size"], "word_embedding"),
            (positions, config["max_position_embeddings"], "pos_embedding"),
            (types, config["type_vocab_size"], "sent_embedding"),
        ):
            states = states + paddle.static.nn.embedding(ids, [rows, size], param_attr=self.name(name))
        states = self.norm(states, "pre_encoder")
        # [batch, 1, length, length]: 0 where both tokens are there, -10000 elsewhere.
        bias = paddle.unsqueeze((paddle.matmul(mask, mask, transpose_y=True) - 1.0) * 10000.0, 1)
        for number in range(config["num_hidden_layers"]):
            layer = f"encoder_layer_{number}"
            query, key, value = (
                self.heads(self.dense(states, size, f"{layer}_multi_head_att_{part}_fc"))
                for part in ("query", "key", "value")
            )
            scale = (size // config["num_attention_heads"]) ** -0.5
            weights = paddle.nn.functional.softmax(paddle.matmul(query * scale, key, transpose_y=True) + bias)
            mixed = paddle.reshape(paddle.transpose(paddle.matmul(weights, value), [0, 2, 1, 3]), [0, 0, size])
            attended = self.dense(mixed, size, f"{layer}_multi_head_att_output_fc")
            states = self.norm(states + attended, f"{layer}_post_att")
            inner = self.dense(states, 4 * size, f"{layer}_ffn_fc_0", config["hidden_act"])
            states = self.norm(states + self.dense(inner, size, f"{layer}_ffn_fc_1"), f"{layer}_post_ffn")
        return states


def batch(rows):
    """Rows of (tokens, types), padded with 0: what a Paddle program is fed with."""
    length = max(len(tokens) for tokens, _ in rows)
    tokens, types, positions = (np.zeros((len(rows), length), np.int64) for _ in range(3))
    mask = np.zeros((len(rows), length, 1), np.float32)
    for row, (ids, kinds) in enumerate(rows):
        tokens[row, : len(ids)], types[row, : len(ids)] = ids, kinds
        positions[row, : len(ids)], mask[row, : len(ids)] = range(len(ids)), 1
    return {"tokens": tokens, "positions": positions, "types": types, "mask": mask}


def ids(text):
    unknown = VOCABULARY.index("[UNK]")
    return [VOCABULARY.index(c) if c in CHARACTERS else unknown for c in text.replace(" ", "")]


def inputs(kind):
    cls, sep = VOCABULARY.index("[CLS]"), VOCABULARY.index("[SEP]")
    if kind == "query_":
        return batch([([cls, *ids(q), sep], [0] * (len(ids(q)) + 2)) for q in QUERIES])
    if kind == "titlepara_":
        return batch([([cls, sep, *ids(p), sep], [0, 0] + [1] * (len(ids(p)) + 1)) for p in PASSAGES])
    pairs = [(ids(q), ids(p)) for q, p in zip(QUERIES, PASSAGES, strict=True)]
    return batch([([cls, *q, sep, *p, sep], [0] * (len(q) + 2) + [1] * (len(p) + 1)) for q, p in pairs])


def run(prefix, config, folder, draw):
    """Write one model's parameters into ``folder``; returns what it computes: name -> nested lists."""
    main, start, scope = paddle.static.Program(), paddle.static.Program(), paddle.static.Scope()
    with paddle.static.program_guard(main, start), paddle.static.scope_guard(scope):
        feeds = [
            *(paddle.static.data(name, [-1, -1], "int64") for name in ("tokens", "positions", "types")),
            paddle.static.data("mask", [-1, -1, 1], "float32"),
        ]
        model = Ernie(prefix, config)
        first = model.states(*feeds)[:, 0:1, :]
        found = {"cls": first}
        if not prefix:
            found["pooled"] = model.dense(first, config["hidden_size"], "pooled_fc", "tanh")
            names = {"weight_attr": model.name("_cls_out_w"), "bias_attr": model.name("_cls_out_b")}
            logits = paddle.static.nn.fc(found["pooled"], 2, num_flatten_dims=2, **names)
            found["probability"] = paddle.nn.functional.softmax(logits)[:, :, 1]
        executor = paddle.static.Executor(paddle.CPUPlace())
        executor.run(start)
        for parameter in main.all_parameters():
            width = 2 if "word_embedding" in parameter.name else config["hidden_size"] ** -0.5
            values = draw.normal(0, width, parameter.shape) + ("scale" in parameter.name)
            scope.find_var(parameter.name).get_tensor().set(values.astype("float32"), paddle.CPUPlace())
        paddle.static.save_vars(executor, str(folder), main, vars=main.all_parameters())
        values = executor.run(main, feed=inputs(prefix), fetch_list=list(found.values()))
    return {name: np.squeeze(value).tolist() for name, value in zip(found, values, strict=True)}


def half(folder, draw):
    """Write a parameter of 16-bit floats; returns its values."""
    program, values = paddle.static.Program(), draw.normal(0, 1, (3, 5)).astype("float16")
    with paddle.static.program_guard(program), paddle.static.scope_guard(paddle.static.Scope()):
        parameter = program.global_block().create_parameter(name="half", shape=[3, 5], dtype="float16")
        paddle.static.global_scope().var("half").get_tensor().set(values, paddle.CPUPlace())
        paddle.static.save_vars(paddle.static.Executor(paddle.CPUPlace()), str(folder), program, vars=[parameter])
    return values.astype("float32").tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=pathlib.Path)
    for name, value in {"positions": 20, "hidden": 4, "heads": 2, "layers": 2, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    config = {
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "relu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": args.hidden,
        "initializer_range": 0.02,
        "max_position_embeddings": args.positions,
        "num_attention_heads": args.heads,
        "num_hidden_layers": args.layers,
        "type_vocab_size": 2,
        "vocab_size": len(VOCABULARY) + 1,  # as ERNIE 1.0, it has more embeddings than its vocabulary has lines
    }
    paddle.enable_static()
    draw = np.random.default_rng(args.seed)
    args.out.mkdir(parents=True)
    (args.out / "ernie_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    lines = [f"{token}\t{number}\n" for number, token in enumerate(VOCABULARY)]
    (args.out / "vocab.txt").write_text("".join(lines), "utf-8")
    expected = {"queries": QUERIES, "passages": PASSAGES}
    for prefix, folder in (("query_", "dual_params"), ("titlepara_", "dual_params"), ("", "cross_params")):
        expected[prefix or "cross"] = run(prefix, config, args.out / folder, draw)
    expected["half"] = half(args.out / "half", draw)
    (args.out / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, indent=1) + "\n", "utf-8")


main()
