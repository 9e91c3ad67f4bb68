"""Options of the verbs that write or read a repository of the Hugging Face hub. This module imports no library."""

import re
from typing import Annotated

from builders.core.options import Help, Parsed, Placeholder, Use

_REPOSITORY_NAME = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")


def repo_name(text: str) -> str:
    """Return ``text`` if it can name a repository. Raise ValueError with the expected form for another text."""
    if not _REPOSITORY_NAME.fullmatch(text):
        raise ValueError("ORG/NAME")
    return text


Repository = Annotated[str, Parsed(repo_name), Placeholder("ORG/NAME")]
CreateRepository = Annotated[bool, Use.WITH_NO, Help("create the repository if it is missing")]
PrivateRepository = Annotated[bool, Help("refuse a public repository; with --create, create a private one")]
DryRun = Annotated[bool, Help("list the files that would be sent with their sizes, and send nothing")]
