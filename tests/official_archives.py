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


def question(text: str, passages: list[str] | None) -> dict[str, Any]:
    row: dict[str, Any] = {"question_id": md5(text), "question": text}
    if passages is not None:
        row["answer_paragraphs"] = [{"paragraph_id": md5(p), "paragraph_text": p} for p in passages]
    return row


def lines(rows: list[Any], **style: Any) -> str:
    return "".join(json.dumps(row, **({"ensure_ascii": False} | style)) + "\n" for row in rows)


def original_files(**style: Any) -> dict[str, str]:
    """Return the original release and its separate test questions: path inside the archive -> content."""
    passages = [{"paragraph_id": md5(p), "paragraph_text": p} for p in PASSAGES]
    return {
        f"{ORIGINAL}/passage_collection.json": lines(passages, **style),
        f"{ORIGINAL}/train.json": lines([question(q, [PASSAGES[n] for n in p]) for q, p in TRAIN.items()], **style),
        f"{ORIGINAL}/dev.json": lines([question(q, [PASSAGES[n] for n in p]) for q, p in DEV.items()], **style),
        "dureader-retrieval-test1/test1.json": lines([question(q, None) for q in TEST1], **style),
        "dureader-retrieval-test2/test2.json": lines([question(q, None) for q in TEST2], **style),
    }


def preprocessed_files() -> dict[str, str]:
    """Return the pre-processed release: path inside the archive -> content."""
    train = list(TRAIN)
    parts = [PASSAGES[n : n + 3] for n in range(0, len(PASSAGES), 3)]
    dual = [f"{train[q]}\t\t{PASSAGES[p]}\t\t{PASSAGES[n]}\t0\n" for q, p, n in DUAL]
    cross = [f"{q}\t\t{PASSAGES[p[0]]}\t1\n{q}\t\t{PASSAGES[(p[0] + 6) % 12]}\t0\n" for q, p in TRAIN.items()]
    top = [(q, PASSAGES[(p[0] + step) % 12]) for q, p in DEV.items() for step in (0, 3, 5)]
    files = {
        "auxiliary/dev.retrieval.top50.res.tsv": "".join(f"{q}\t\t{p}\t0\n" for q, p in top),
        "auxiliary/dev.retrieval.top50.res.id_map.tsv": "".join(f"{md5(q)}\t{md5(p)}\n" for q, p in top),
        "dev/dev.json": lines([question(q, [PASSAGES[n] for n in p]) for q, p in DEV.items()]),
        "dev/dev.q.format": "".join(f"{q}\t-\t-\t0\n" for q in DEV),
        "dev/q2qid.dev.json": json.dumps({q: md5(q) for q in DEV}, ensure_ascii=False),
        "passage-collection/passage2id.map.json": json.dumps({str(n): md5(p) for n, p in enumerate(PASSAGES)}),
        "train/dual.train.tsv": "".join(dual),
        "train/dual.train.demo.tsv": "".join(dual[:2]),
        "train/cross.train.tsv": "".join(cross),
        "train/cross.train.demo.tsv": cross[0],
        "readme.md": "# 说明\n",
        "License.docx": "PK",
    }
    for number, part in enumerate(parts):
        files[f"passage-collection/part-{number:02d}"] = "".join(f"-\t\t{p}\t0\n" for p in part)
    return {f"{PREPROCESSED}/{name}": content for name, content in files.items()}


BOTH = original_files() | preprocessed_files()


def write_files(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode())
    return folder


def write_tar(path: Path, files: dict[str, str], folder: Path, mode: str = "w:gz") -> Path:
    write_files(folder, files)
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name in files:
            tar.add(folder / name, name)
    shutil.rmtree(folder)
    return path


def tables(release: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    from builders.store.reader import open_release  # not where this file is the program

    opened = open_release(release)
    return {pair: opened.table(*pair).to_pylist() for pair in opened.splits()}
