"""Made-up official archives in the layouts of both releases, for tests."""

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

from releases import md5

ORIGINAL, PREPROCESSED = "dureader_retrieval-data", "dureader-retrieval-baseline-dataset"
PASSAGES = [
    "绿萝喜欢散射光，放在窗边两米以内最好，夏天不要让太阳直晒。",
    "蒸鱼水开以后再放，八分钟关火，焖两分钟出锅，最后淋热油。",
    "电动车冬天跑得近，是因为低温下电池放电变慢，开春会好。",
    "办理居住证要带身份证、租房合同和一张照片，十五个工作日领取。",
    "孩子发烧三十八度五以下先物理降温，多喝水，随时量体温。",
    "毛衣缩水可以用护发素温水泡二十分钟，再慢慢拉平晾干。",
    'iPhone 的"设置"里打开定位服务，路径写作 C:\\Users 的是电脑。',
    "骑行头盔要选有认证标志的，买来以后每三年换一次。",
    "茶渍留在杯子里，用小苏打加一点水擦洗就能去掉。😀",
    "猫不吃饭先看牙龈和体温，超过一天要带去医院。",
    "},{",
    "面团发酵到两倍大，用手指按下去不回弹就是好了。",
]
TRAIN = {"绿萝应该放在哪里": [0], "清蒸鱼要蒸几分钟": [1], "电动车冬天为什么跑不远": [2], "怎么办居住证": [3]}
DEV = {"孩子发烧怎么办": [4, 9], "毛衣缩水了怎么恢复": [5]}
TEST1, TEST2 = ["骑行头盔多久换一次"], ["茶渍怎么去掉", "猫不吃东西怎么办"]
# (question, positive, negative) of dual.train.tsv, in order. Questions and negatives are repeated.
DUAL = [(0, 0, 7), (1, 1, 8), (0, 0, 9), (2, 2, 10), (3, 3, 0), (1, 1, 11), (0, 0, 7)]


def paragraphs(passages: list[str]) -> list[dict[str, str]]:
    """Return the rows of passages as the official files have them."""
    return [{"paragraph_id": md5(passage), "paragraph_text": passage} for passage in passages]


def question(text: str, passages: list[str] | None) -> dict[str, Any]:
    """Return the row of a question. A question of a test set has no passages (None)."""
    row: dict[str, Any] = {"question_id": md5(text), "question": text}
    if passages is not None:
        row["answer_paragraphs"] = paragraphs(passages)
    return row


def lines(rows: list[Any], **style: Any) -> str:
    """Return rows as JSON lines. ``style``: further options of ``json.dumps``."""
    dump_options = {"ensure_ascii": False} | style
    return "".join(json.dumps(row, **dump_options) + "\n" for row in rows)


def judged_lines(positions_by_question: dict[str, list[int]], **style: Any) -> str:
    """Return the lines of questions, whose positive passages are at these positions of ``PASSAGES``."""
    rows = []
    for question_text, positions in positions_by_question.items():
        rows.append(question(question_text, [PASSAGES[position] for position in positions]))
    return lines(rows, **style)


def original_files(**style: Any) -> dict[str, str]:
    """Return the original release and its separate test questions: path inside the archive -> content."""
    return {
        f"{ORIGINAL}/passage_collection.json": lines(paragraphs(PASSAGES), **style),
        f"{ORIGINAL}/train.json": judged_lines(TRAIN, **style),
        f"{ORIGINAL}/dev.json": judged_lines(DEV, **style),
        "dureader-retrieval-test1/test1.json": lines([question(text, None) for text in TEST1], **style),
        "dureader-retrieval-test2/test2.json": lines([question(text, None) for text in TEST2], **style),
    }


def shifted_passage(position: int, step: int) -> str:
    """Return the passage that is ``step`` positions after a position, from the start again after the last passage."""
    return PASSAGES[(position + step) % len(PASSAGES)]


def training_lines() -> dict[str, list[str]]:
    """Return the lines of the training files: dual (two passages a line), and cross (one passage a line)."""
    train_questions = list(TRAIN)
    dual_lines = []
    for question_number, positive, negative in DUAL:
        text = train_questions[question_number]
        dual_lines.append(f"{text}\t\t{PASSAGES[positive]}\t\t{PASSAGES[negative]}\t0\n")
    cross_lines = []
    for text, positions in TRAIN.items():
        positive_line = f"{text}\t\t{PASSAGES[positions[0]]}\t1\n"
        negative_line = f"{text}\t\t{shifted_passage(positions[0], 6)}\t0\n"
        cross_lines.append(positive_line + negative_line)
    return {"dual": dual_lines, "cross": cross_lines}


def preprocessed_files() -> dict[str, str]:
    """Return the pre-processed release: path inside the archive -> content."""
    dual_lines = training_lines()["dual"]
    cross_lines = training_lines()["cross"]
    # The passages that the official retriever found for the dev questions.
    top_passages = []
    for text, positions in DEV.items():
        for step in (0, 3, 5):
            top_passages.append((text, shifted_passage(positions[0], step)))
    passage_ids = {str(position): md5(passage) for position, passage in enumerate(PASSAGES)}
    files = {
        "auxiliary/dev.retrieval.top50.res.tsv": "".join(f"{text}\t\t{hit}\t0\n" for text, hit in top_passages),
        "auxiliary/dev.retrieval.top50.res.id_map.tsv": "".join(
            f"{md5(text)}\t{md5(hit)}\n" for text, hit in top_passages
        ),
        "dev/dev.json": judged_lines(DEV),
        "dev/dev.q.format": "".join(f"{text}\t-\t-\t0\n" for text in DEV),
        "dev/q2qid.dev.json": json.dumps({text: md5(text) for text in DEV}, ensure_ascii=False),
        "passage-collection/passage2id.map.json": json.dumps(passage_ids),
        "train/dual.train.tsv": "".join(dual_lines),
        "train/dual.train.demo.tsv": "".join(dual_lines[:2]),
        "train/cross.train.tsv": "".join(cross_lines),
        "train/cross.train.demo.tsv": cross_lines[0],
        "readme.md": "# 说明\n",
        "License.docx": "PK",
    }
    # The collection is split into files of three passages.
    for first_position in range(0, len(PASSAGES), 3):
        part_passages = PASSAGES[first_position : first_position + 3]
        part_lines = [f"-\t\t{passage}\t0\n" for passage in part_passages]
        files[f"passage-collection/part-{first_position // 3:02d}"] = "".join(part_lines)
    return {f"{PREPROCESSED}/{name}": content for name, content in files.items()}


BOTH = original_files() | preprocessed_files()


def write_files(folder: Path, files: dict[str, str]) -> Path:
    """Write files into a folder. Return the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode())
    return folder


def write_tar(path: Path, files: dict[str, str], folder: Path, mode: str = "w:gz") -> Path:
    """Write files into an archive, by means of a folder that does not remain. Return the archive's path."""
    write_files(folder, files)
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name in files:
            tar.add(folder / name, name)
    shutil.rmtree(folder)
    return path


def tables(release: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the rows of every (config, split) of a release."""
    from builders.store.reader import open_release  # not where this file is the program

    opened = open_release(release)
    return {pair: opened.table(*pair).to_pylist() for pair in opened.splits()}
