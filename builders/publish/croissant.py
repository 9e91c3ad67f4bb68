"""``croissant.json``: the release in Croissant 1.1, with every file's SHA-256 and where it all comes from.

Every file is a FileObject, every split a RecordSet. A split of one file is read from that file, checksum and all; a
split of more from the files beside this one, in a copy of the repository. Lineage is in the words of W3C's PROV: the
commands that made the release, and the sources of each with their SHA-256. The specification:
github.com/mlcommons/croissant, docs/croissant-spec-1.1.md. mlcroissant reads it (`make test-croissant`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from builders.store.card import CITATION, Configs, card, configs_of, is_reading, pretty_name, sets_of
from builders.store.layout import FORMAT, config_of, schema_of
from builders.store.manifest import Build, FileEntry

_TERMS = (  # what stands in Croissant's own namespace: Appendix 1 of the specification
    *("annotation", "arrayShape", "citeAs", "column", "containedIn", "equivalentProperty", "excludes", "extract"),
    *("field", "fileObject", "fileProperty", "fileSet", "format", "includes", "isArray", "isLiveDataset", "jsonPath"),
    *("key", "md5", "parentField", "path", "readLines", "recordSet", "references", "regex", "repeated", "replace"),
    *("samplingRate", "sdVersion", "separator", "source", "subField", "transform", "unArchive", "value"),
)
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "prov": "http://www.w3.org/ns/prov#",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "description": {"@container": "@language"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "name": {"@container": "@language"},
    **{term: f"cr:{term}" for term in _TERMS},
}
_TYPES = {pa.string(): "sc:Text", pa.int64(): "sc:Integer"}
_FORMATS = {"parquet": "application/x-parquet", "json": "application/json", "png": "image/png", "md": "text/markdown"}
_FORMATS |= {"yaml": "application/yaml", "gz": "application/gzip"}
_LICENCE = "https://spdx.org/licenses/Apache-2.0.html"


def croissant(entries: Iterable[FileEntry], builds: list[Build], repo: str, endpoint: str, date: str) -> str:
    """The content of the file.

    Args:
        entries: the files of the release that it describes.
        builds: the builds that the manifest lists.
        repo: ORG/NAME of the dataset on the hub.
        endpoint: the hub's address.
        date: of the publication, YYYY-MM-DD.
    """
    entries = sorted(entries, key=lambda entry: entry.path)
    configs, reading, page = configs_of(entries), is_reading(builds), f"{endpoint}/datasets/{repo}"
    own = [found.terms for found in sets_of(configs) if found.own_terms]
    sources = {source.sha256: source for build in builds for source in build.sources}
    content = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": repo.rsplit("/", 1)[-1],
        "alternateName": pretty_name(reading),
        "description": "Chinese passage retrieval: queries, a collection of passages, and which passages answer which"
        " query, in the layout of DuReader-retrieval (Qiu et al., EMNLP 2022).",
        "url": page,
        "license": ["other" if reading else _LICENCE, *own],
        "creator": {"@type": "sc:Organization", "name": repo.split("/")[0]},
        "datePublished": date,
        "version": f"{FORMAT}.0.0+{_content(entries)}",
        "inLanguage": ["zh", "en"] if any(found.translated for found in sets_of(configs)) else ["zh"],
        "keywords": ["passage retrieval", "dense retrieval", "Chinese", "benchmark"],
        "isBasedOn": "https://arxiv.org/abs/2203.10232",
        "citeAs": CITATION,
        "rai:dataLimitations": _limitations(entries, builds),
        "prov:wasGeneratedBy": [_activity(build) for build in builds],
        "prov:wasDerivedFrom": [
            {"@type": "prov:Entity", "prov:label": source.name, "contentSize": f"{source.bytes} B", "sha256": digest}
            for digest, source in sources.items()
        ],
        "distribution": [*(_file(entry, page) for entry in entries), *_file_sets(configs)],
        "recordSet": [_records(config, split, configs) for config in configs for split in configs[config]],
    }
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def _limitations(entries: list[FileEntry], builds: list[Build]) -> list[str]:
    text = card(entries, {"table3": {}, "collections": {}}, builds).split("## Limitations")[1].split("## ")[0]
    return [line.removeprefix("- ") for line in text.splitlines() if line]


def _content(entries: list[FileEntry]) -> str:
    """Changes with the files' bytes: what semantic versioning calls build metadata."""
    return hashlib.sha256("".join(entry.sha256 for entry in entries).encode()).hexdigest()[:12]


def _activity(build: Build) -> dict[str, Any]:
    options = ", ".join(f"{name} = {value}" for name, value in build.options.items())
    return {
        "@type": "prov:Activity",
        "prov:label": f"python -m builders {build.verb}",
        **({"description": options} if options else {}),
        **({"prov:used": [{"@type": "prov:Entity", "sha256": source.sha256} for source in build.sources]}),
    }


def _file(entry: FileEntry, page: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": entry.path,
        "name": entry.path,
        "contentUrl": f"{page}/resolve/main/{entry.path}",
        "contentSize": f"{entry.bytes} B",
        "encodingFormat": _FORMATS.get(entry.path.rsplit(".", 1)[-1], "application/octet-stream"),
        "sha256": entry.sha256,
    }


def _file_sets(configs: Configs) -> Iterator[dict[str, Any]]:
    for config, by_split in configs.items():
        for split, shards in by_split.items():
            if len(shards) > 1:
                yield {
                    "@type": "cr:FileSet",
                    "@id": f"files-of-{config}-{split}",
                    "name": f"{config}/{split}",
                    "encodingFormat": _FORMATS["parquet"],
                    "includes": f"{config}/{split}-*.parquet",
                }


def _records(config: str, split: str, configs: Configs) -> dict[str, Any]:
    shards, name = configs[config][split], f"{config}-{split}"
    source = {"fileObject": {"@id": shards[0].path}}
    if len(shards) > 1:
        source = {"fileSet": {"@id": f"files-of-{name}"}}
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "description": config_of(config).about,
        **({"key": {"@id": f"{name}/_id"}} if "_id" in schema_of(config).names else {}),
        "field": [_field(each, name, source) for each in schema_of(config)],
    }


def _field(field: pa.Field, records: str, source: dict[str, Any]) -> dict[str, Any]:
    own = {"@type": "cr:Field", "@id": f"{records}/{field.name}", "name": field.name}
    if not pa.types.is_list(field.type):
        # No `references` from judgments to texts: mlcroissant would join the tables whenever one is read.
        return {**own, "dataType": _TYPES[field.type], "source": {**source, "extract": {"column": field.name}}}
    parts = [
        {
            "@type": "cr:Field",
            "@id": f"{records}/{field.name}/{part.name}",
            "name": part.name,
            "dataType": _TYPES[part.type],
            "source": {**source, "extract": {"column": field.name}, "transform": {"jsonPath": part.name}},
        }
        for part in field.type.value_type
    ]
    return {**own, "isArray": True, "arrayShape": "-1", "subField": parts}
