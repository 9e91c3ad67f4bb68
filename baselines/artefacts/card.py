"""What a repository of artefacts says of itself: a table, and its card."""

from __future__ import annotations

from baselines.artefacts.manifest import Manifest
from builders.common.hub import as_yaml
from builders.common.tables import as_code, as_text, text_table

_HEAD = ("artefact", "of", "size", "MB", "model")


def _rows(manifest: Manifest) -> list[list[str]]:
    return [
        [
            artefact.name,
            artefact.about.get("of", "-"),
            artefact.about.get("size", "-"),
            f"{manifest.bytes_of(artefact) / 1e6:,.1f}",
            artefact.about.get("model", "-"),
        ]
        for artefact in manifest.artefacts
    ]


def table(manifest: Manifest) -> str:
    """What is there, as aligned text."""
    return text_table(list(_HEAD), _rows(manifest))


def card(manifest: Manifest, repo: str, dataset: str | None, licence: str) -> str:
    """README.md of the repository.

    Args:
        manifest: what it holds.
        repo: ORG/NAME.
        dataset: ORG/NAME of the release on the hub.
        licence: of the artefacts, in the hub's words.
    """
    head = {"license": licence, "viewer": False, "tags": ["dureader_retrieval", "embeddings", "retrieval-runs"]}
    lines = [f"| {' | '.join(_HEAD)} |", "|---|---|---|---:|---|"]
    for name, *rest in _rows(manifest):
        lines.append(f"| {as_code(name)} | {' | '.join(map(as_text, rest))} |")
    prints = {place: said for artefact in manifest.artefacts for place, said in artefact.of.items()}
    of = "\n".join(f"- {as_code(place)}: {as_code(said)}" for place, said in sorted(prints.items()))
    whose = f" [{dataset}](https://huggingface.co/datasets/{dataset})" if dataset else ""
    shown = "\n".join(lines)
    return f"""---
{as_yaml(head)}---

# Artefacts of a release of DuReader-retrieval

Embeddings, runs and hard negatives, made by `dureader_retrieval` on the release{whose}. They hold ids and numbers, and
no texts.

{shown}

```bash
python -m baselines artefacts pull {repo} ARTEFACT --release DIR --out PATH
```

`pull` compares every file with `manifest.json`, and the release with the fingerprints of what the artefacts are of:

{of}
"""
