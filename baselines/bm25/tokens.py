"""Split Chinese text into tokens for BM25, by an analyzer. Queries need the analyzer of the passages.

- ``words``: words of jieba's default mode, which uses a hidden Markov model for unknown words.
- ``characters``: single Chinese characters, and runs of other letters and digits.
- ``bigrams``: pairs of neighbouring Chinese characters, lone Chinese characters, and runs of other letters and digits.
- ``both``: the words, then the bigrams. A word of two characters counts twice.

A user's function can replace these analyzers (:mod:`.own_tokenizer`), and add words (:mod:`.user_dictionary`).

Texts are normalised to NFKC. Kana, Thai and other scripts without spaces are treated like Chinese, but have no words:
``words`` and ``bigrams`` have pairs of neighbouring letters, ``characters`` has single letters.

Tokens are in lower case, and have at least one letter, digit or Chinese character.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from baselines.bm25.own_tokenizer import OwnTokenizer
from baselines.bm25.simplified import simplifier_version, simplify
from baselines.bm25.user_dictionary import UserDictionary
from builders.core.word_tokens import CHINESE, pair_letters, plain_text, text_runs, word_tokens
from builders.core.words import segmenter_version

K1, B = 1.2, 0.75  # Elasticsearch's and Lucene's defaults
_RULE = 2  # increase when word_tokens() changes, so that cached indexes are rebuilt
_CHARACTERS_RULE = 2  # increase when cut_characters() or cut_bigrams() changes
_STOP_WORDS_RULE = 1  # increase when the stop words change
# A run of Chinese characters, or a run of other letters and digits.
_RUN = re.compile(f"[{CHINESE}]+|[^\\W_{CHINESE}]+")
_IS_CHINESE = re.compile(f"[{CHINESE}]")

# This project's list of Chinese stop words, simplified and traditional. Most numerals and nouns are omitted, because a
# question may be about a number or a thing. Negations (不, 没) are omitted, because a negation reverses the meaning.
_STOP_WORDS = """
particles: 的 地 得 之 了 着 过 吗 呢 吧 啊 呀 哦 嘛 啦 哇 么 所 者 也 而 其 于 以 及 与 或 且 则 乃 焉 矣 兮 等
  等等
pronouns: 我 你 您 他 她 它 我们 你们 您们 他们 她们 它们 咱 咱们 自己 大家 人家 这 那 这个 那个 这些 那些 这里
  那里 这儿 那儿 这样 那样 这么 那么 此 该 本 各 每 某 某些 其他 其它 其中
prepositions: 在 从 自 到 往 向 对 对于 关于 由 由于 被 把 将 给 跟 和 同 为 为了 按 按照 根据 依据 通过 随着 除了
  比 当 用 因 作为
conjunctions: 因为 所以 如果 但 但是 可是 不过 然而 虽然 尽管 而且 并且 并 以及 或者 还是 只要 只有 无论 不管 即使
  于是 因此 从而 既 又 即 若 如 如何 否则
verbs: 是 有 会 能 要 可 可以 能够 应该 应 需 需要 想 让 使 来 去 做 进行 成为 属于 叫 叫做 称为
adverbs: 就 都 很 太 更 最 还 再 才 已 已经 正 正在 只 仅 非常 比较 十分 一般 一直 一下 一些 一样 同时 然后 之后
  以后 以前 之前
questions: 什么 啥 谁 哪 哪个 哪些 哪里 哪儿 怎 怎么 怎样 怎么样 怎么办 为何 为什么 何 何时 几 多少 多 是否 是不是
  有没有 能不能 可不可以 请问 请
measure words and places: 个 种 些 次 位 一个 一种 上 中 里 内 下 时 时候
traditional forms: 著 過 嗎 於 與 則 我們 你們 他們 她們 它們 這 這個 那個 這些 這裡 那裡 這樣 那樣 這麼 那麼 從 對
  對於 關於 由於 將 給 為 為了 根據 依據 通過 隨著 當 因為 雖然 儘管 無論 還是 還 會 來 讓 應該 應 進行 成為 屬於
  稱為 然後 之後 以後 已經 僅 比較 同時 什麼 誰 怎麼 怎麼樣 怎樣 為何 為什麼 何時 幾 請問 請 個 種 裡 內 時 時候
  一個 一種 並 並且
"""
# The names of the groups are ASCII.
STOP_WORDS = frozenset(word for word in _STOP_WORDS.split() if not word.isascii())


def cut_characters(text: str) -> list[str]:
    """Return the characters of scripts without spaces, and the runs of other letters and digits, in order."""
    return _split_text(text, _split_characters, single_letters=True)


def cut_bigrams(text: str) -> list[str]:
    """Return the bigrams of a text, in order: see the list at the top of this file."""
    return _split_text(text, _split_bigrams, single_letters=False)


def _split_text(text: str, split_rest: Callable[[str], list[str]], *, single_letters: bool) -> list[str]:
    """Return the tokens of a text. ``split_rest`` splits the runs of the kind ``rest``: Chinese, ASCII, numbers, signs.

    A run of the kind ``letters`` is one token. In a run of the kind ``unspaced``, the tokens are single letters if
    ``single_letters`` is true, else pairs of letters.
    """
    unsplit_text = plain_text(text)
    if unsplit_text is not None:
        return split_rest(unsplit_text)
    # The text may have other scripts, so it is split into runs.
    tokens: list[str] = []
    for run in text_runs(text):
        if run.kind == "letters":
            tokens.append(run.text.lower())
        elif run.kind == "unspaced":
            tokens += run.letters if single_letters else pair_letters(run.letters)
        else:
            tokens += split_rest(run.text)
    return tokens


def _split_characters(text: str) -> list[str]:
    """Return the Chinese characters, and the runs of other letters and digits. Signs are dropped."""
    tokens: list[str] = []
    for run in _RUN.findall(text.lower()):
        if _IS_CHINESE.match(run):
            tokens += run  # one token for each character of the run
        else:
            tokens.append(run)
    return tokens


def _split_bigrams(text: str) -> list[str]:
    """Return the pairs of neighbouring Chinese characters, lone ones, and the runs of other letters and digits."""
    tokens: list[str] = []
    for run in _RUN.findall(text.lower()):
        if len(run) > 1 and _IS_CHINESE.match(run):
            tokens += map("".join, pairwise(run))
        else:
            tokens.append(run)
    return tokens


ANALYZERS: dict[str, Callable[[str], list[str]]] = {
    "words": word_tokens,
    "characters": cut_characters,
    "bigrams": cut_bigrams,
    "both": lambda text: word_tokens(text) + cut_bigrams(text),
}
_WITH_WORDS = ("words", "both")  # analyzers that use word_tokens()
# Analyzers that use cut_characters() or cut_bigrams().
_WITH_CHARACTERS = ("characters", "bigrams", "both")


@dataclass(frozen=True)
class Analyzer:
    """A callable that splits a text into tokens. bm25s accepts it as ``splitter``.

    Attributes:
        name: one of ``ANALYZERS``. With ``tokenizer``, it may be any text, because it is not used.
        drop_stop_words: True to drop the tokens in ``STOP_WORDS``.
        dictionary: a user's words, for an analyzer with words.
        simplified: True to convert texts to simplified Chinese first.
        tokenizer: a user's function, which replaces the analyzer ``name``.
    """

    name: str
    drop_stop_words: bool = False
    dictionary: UserDictionary | None = None
    simplified: bool = False
    tokenizer: OwnTokenizer | None = None

    def __call__(self, text: str) -> list[str]:
        if self.simplified:
            text = simplify(text)
        if self.tokenizer:
            tokens = self.tokenizer(text)
        elif self.dictionary:
            tokens = word_tokens(text, self.dictionary.cut)
            if self.name == "both":
                tokens += cut_bigrams(text)
        else:
            tokens = ANALYZERS[self.name](text)
        if self.drop_stop_words:
            return [token for token in tokens if token not in STOP_WORDS]
        return tokens

    @property
    def version(self) -> str:
        """Names and versions of all rules that the tokens depend on, for the key of an index and for manifests."""
        rules: list[str] = []
        if self.tokenizer:
            rules.append(self.tokenizer.version)
        # Only the rules that apply are named, so that a change of a rule rebuilds only the indexes that depend on it.
        if self.name in _WITH_WORDS and not self.tokenizer:
            rules.append(f"{segmenter_version()} tokens {_RULE}")
        if self.name in _WITH_CHARACTERS and not self.tokenizer:
            rules.append(f"{self.name} {_CHARACTERS_RULE}")
        if self.drop_stop_words:
            rules.append(f"no stop words {_STOP_WORDS_RULE}")
        if self.dictionary:
            rules.append(f"user dictionary {self.dictionary.sha256[:16]}")
        if self.simplified:
            rules.append(simplifier_version())
        return ", ".join(rules)

    @property
    def has_known_source(self) -> bool:
        """True if equal versions mean equal tokens, so that an index can be reused."""
        return self.tokenizer is None or self.tokenizer.source is not None


WORDS = Analyzer("words")
DEFAULT = Analyzer("both", drop_stop_words=True)  # the best of the table in docs/bm25.md
