"""The fingerprint of a user's function, so that a cached result is reused only for the unchanged function.

The fingerprint covers the function's compiled code, its defaults, the variables of its closure and the global names
that the code reads. Functions and classes among these values are covered in the same way. There are these exceptions:

- A function, class or module of an installed package or of Python counts by its name and the package's version.
- A module of the user also counts by its file, because statements at its top level may load data, too. The main module
  does not, because a script that calls this project has many unrelated statements.
- A global name that the code itself assigns is a cache, for example a model that the first call opens, and is skipped.
- An object with a text ``version`` counts by this text. So users can describe objects that Python cannot.

Other objects, for example of a compiled library, cannot be described, so the fingerprint is unknown. Compiled code
depends on the version of Python. Files that a function reads, and the state of libraries, are not covered.
"""

import dis
import enum
import functools
import hashlib
import importlib
import importlib.metadata
import logging
import platform
import re
import sys
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePath
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, Generic, Protocol

from builders.core.errors import shown_value
from builders.core.version import VERSION
from builders.core.words import word_cutter

_PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes, type(...), range)
_SEQUENCES = (list, tuple)
_SETS = (set, frozenset)
_MAPPINGS = (dict, OrderedDict, Counter, defaultdict)
# Objects without an effect on results.
_SILENT_TYPES = (logging.Logger, type(threading.Lock()), type(threading.RLock()))
_CACHED_FUNCTION = type(functools.cache(lambda: None))
_DESCRIPTORS = (GetSetDescriptorType, MemberDescriptorType)
_PLAIN_BASES = (object, Generic, Protocol)  # base classes without values of their own
_OWN_PACKAGES = ("builders", "baselines")  # this project, which may be a checkout
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")


class UnknownSource(Exception):
    """A function depends on an object that cannot be described. The message names the object."""


def fingerprint_function(function: Callable[..., Any], *, with_files: bool = True) -> str:
    """Return the SHA-256 of everything that a function depends on, as described at the top of this file.

    The fingerprint is the same in every process with the same version of Python. Without ``with_files``, the files of
    modules are left out, so that a copy of the function in a process without these modules has the same fingerprint.
    Raises :class:`UnknownSource`.
    """
    version = getattr(function, "version", None)
    if isinstance(version, str):
        return _digest("version", version).hex()
    try:
        return _Fingerprint(with_files).describe(function, "the function").hex()
    except RecursionError:
        raise UnknownSource("its values are nested too deep") from None


class _Fingerprint:
    """A walk over a function and the objects that it refers to."""

    def __init__(self, with_files: bool) -> None:
        self._with_files = with_files
        # Digests of the described objects by id. The objects are kept, so that no other object gets the same id.
        self._digests: dict[int, bytes] = {}
        self._described_objects: list[object] = []
        # Ids of the objects whose description has begun, from the outside in.
        self._open_ids: list[int] = []
        self._versions: dict[str, str] = {}

    def describe(self, value: Any, label: str) -> bytes:
        """Return the digest of a value. ``label`` names the value in :class:`UnknownSource`."""
        value_type = type(value)
        if value_type in _PLAIN_TYPES:
            return _digest(value_type.__name__, repr(value))
        if isinstance(value, _SILENT_TYPES):
            return _digest("silent")
        if value_type is re.Pattern:
            return _digest("pattern", repr(value.pattern), str(value.flags))
        if isinstance(value, PurePath):
            return _digest("path", str(value))
        if isinstance(value, ModuleType):
            return self._describe_module(value, ())
        # An object may refer to itself.
        value_id = id(value)
        if value_id in self._open_ids:
            return _digest("outer object", str(self._open_ids.index(value_id)))
        if value_id not in self._digests:
            self._open_ids.append(value_id)
            self._digests[value_id] = self._describe_object(value, label)
            self._described_objects.append(value)
            self._open_ids.pop()
        return self._digests[value_id]

    def _describe_object(self, value: Any, label: str) -> bytes:
        """Return the digest of a value that may refer to other values. The order in a set or mapping does not count."""
        value_type = type(value)
        if value_type in _SEQUENCES:
            return _digest(value_type.__name__, *[self.describe(element, label) for element in value])
        if value_type in _SETS:
            return _digest("set", *sorted(self.describe(element, label) for element in value))
        if value_type in _MAPPINGS:
            pairs = []
            for key, element in value.items():
                pairs.append(_digest(self.describe(key, label), self.describe(element, f"{label}[{key!r}]")))
            return _digest(value_type.__name__, *sorted(pairs))
        if isinstance(value, type):
            return self._describe_class(value)
        if isinstance(value, enum.Enum):
            return _digest("enum", value_type.__qualname__, value.name, self.describe(value.value, label))
        if isinstance(value, FunctionType):
            return self._describe_function(value)
        if isinstance(value, MethodType):
            return _digest("method", self.describe(value.__func__, label), self.describe(value.__self__, label))
        if isinstance(value, functools.partial):
            parts = (value.func, value.args, value.keywords)
            return _digest("partial", *[self.describe(part, label) for part in parts])
        if isinstance(value, _CACHED_FUNCTION):
            return _digest("cached", self.describe(value.__wrapped__, label))
        if isinstance(value, BuiltinFunctionType):
            return self._describe_builtin(value, label)
        return self._describe_instance(value, label)

    def _describe_function(self, function: FunctionType) -> bytes:
        """Return the digest of a Python function: its code, its module's file, and the values that the code uses."""
        installed_version = self._installed_version(function.__module__)
        if installed_version:
            return _digest("installed", function.__module__, function.__qualname__, installed_version)
        code_parts = list(_nested_code(function.__code__))
        # A variable that the code itself assigns is a cache and is skipped.
        assigned_names = _names(code_parts, "STORE_GLOBAL", "STORE_DEREF")
        parts = [self._describe_code(function.__code__), self._describe_file(function.__module__)]
        parts.append(self.describe(function.__defaults__, "a default"))
        parts.append(self.describe(function.__kwdefaults__, "a default"))
        # The variables of the closure.
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name in assigned_names:
                continue
            try:
                content = cell.cell_contents
            except ValueError:  # the variable has no value yet
                continue
            parts.append(_digest(name, self._describe_named(content, name, code_parts)))
        # The global names that the code reads. Other names are Python's own, or undefined.
        for name in sorted(_names(code_parts, "LOAD_GLOBAL", "LOAD_NAME") - assigned_names):
            if name in function.__globals__:
                parts.append(_digest(name, self._describe_named(function.__globals__[name], name, code_parts)))
        # The modules that the code imports.
        for name in sorted(_names(code_parts, "IMPORT_NAME")):
            try:
                module = importlib.import_module(name)
            except Exception:  # a module may raise any error; the function would raise it, too
                continue
            parts.append(_digest(name, self._describe_named(module, name, code_parts)))
        return _digest("function", *parts)

    def _describe_named(self, value: Any, name: str, code_parts: Iterable[CodeType]) -> bytes:
        """Return the digest of the value of a variable that the code of a function reads by ``name``."""
        if isinstance(value, ModuleType):
            # All global names and attributes in the code, because the bytecode does not say which are the module's.
            names = {code_name for code in code_parts for code_name in code.co_names}
            return self._describe_module(value, names)
        return self.describe(value, name)

    def _describe_code(self, code: CodeType) -> bytes:
        """Return the digest of compiled code, without its file and its line numbers."""
        constants = []
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                constants.append(self._describe_code(constant))
            else:
                constants.append(self._describe_constant(constant))
        arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        return _digest(code.co_code, repr(arguments), repr(names), code.co_exceptiontable, *constants)

    def _describe_constant(self, constant: Any) -> bytes:
        """Return the digest of a constant of compiled code: a plain value, or a tuple or set of constants."""
        if isinstance(constant, tuple):
            return _digest("tuple", *map(self._describe_constant, constant))
        if isinstance(constant, frozenset):
            return _digest("set", *sorted(map(self._describe_constant, constant)))
        return _digest(type(constant).__name__, repr(constant))

    def _describe_module(self, module: ModuleType, names: Iterable[str]) -> bytes:
        """Return the digest of a module. Of a user's module, the values of those ``names`` that it has count, too.

        ``names`` are all names in the code of a function, also attributes of other objects.
        """
        installed_version = self._installed_version(module.__name__)
        if installed_version:
            return _digest("module", module.__name__, installed_version)
        parts = [self._describe_file(module.__name__)]
        namespace = vars(module)
        for name in sorted(set(names)):
            if name in namespace:
                parts.append(_digest(name, self.describe(namespace[name], f"{module.__name__}.{name}")))
        return _digest("module", module.__name__, *parts)

    def _describe_file(self, module_name: str) -> bytes:
        return _module_file(module_name) if self._with_files else b""

    def _describe_class(self, described_class: type) -> bytes:
        """Return the digest of a class: its bases, methods and other attributes, and its module's file."""
        installed_version = self._installed_version(described_class.__module__)
        if installed_version:
            return _digest("class", described_class.__module__, described_class.__qualname__, installed_version)
        parts = [self.describe(base, base.__qualname__) for base in described_class.__bases__]
        for name, value in sorted(vars(described_class).items()):
            label = f"{described_class.__qualname__}.{name}"
            if isinstance(value, staticmethod | classmethod):
                value = value.__func__
            if isinstance(value, functools.cached_property):
                value = value.func
            if isinstance(value, property):
                value = (value.fget, value.fset, value.fdel)
            # Functions like __init__ are the user's. Other values with such names are Python's, for example __doc__.
            is_made_by_python = name.startswith("__") or name == "_abc_impl" or isinstance(value, _DESCRIPTORS)
            if isinstance(value, FunctionType) or not is_made_by_python:
                parts.append(_digest(name, self.describe(value, label)))
        return _digest("class", described_class.__qualname__, self._describe_file(described_class.__module__), *parts)

    def _describe_builtin(self, function: Any, label: str) -> bytes:
        """Return the digest of a compiled function of a module, or of a compiled method bound to an object."""
        owner = function.__self__
        if owner is None or isinstance(owner, ModuleType):
            module_name = function.__module__ or "builtins"
            return _digest("builtin", module_name, function.__qualname__, self._installed_version(module_name))
        return _digest("builtin", function.__name__, self.describe(owner, label))

    def _describe_instance(self, instance: Any, label: str) -> bytes:
        """Return the digest of an object of any other class, or raise :class:`UnknownSource`."""
        instance_class = type(instance)
        if self._has_plain_values(instance_class):
            values = dict(getattr(instance, "__dict__", {}))
            # The attributes in __slots__.
            for base in instance_class.__mro__:
                for name, descriptor in vars(base).items():
                    if isinstance(descriptor, MemberDescriptorType) and hasattr(instance, name):
                        values[name] = getattr(instance, name)
            return _digest("instance", self.describe(instance_class, label), self.describe(values, label))
        # The JSON of a tokenizer of transformers or tokenizers has its vocabulary and rules.
        backend = getattr(instance, "backend_tokenizer", instance)
        if type(backend).__module__.partition(".")[0] == "tokenizers" and hasattr(backend, "to_str"):
            version = self._installed_version(instance_class.__module__)
            return _digest("tokenizer", instance_class.__qualname__, version, backend.to_str())
        # An object that a library creates when it is imported, for example jieba.dt, is a part of the library.
        for module_name, module in list(sys.modules.items()):
            is_part = any(value is instance for value in list(getattr(module, "__dict__", {}).values()))
            if is_part and self._installed_version(module_name):
                return _digest("object", instance_class.__qualname__, self._installed_version(module_name))
        raise UnknownSource(f"{label} is {shown_value(instance)}, which cannot be described")

    def _has_plain_values(self, instance_class: type) -> bool:
        """True if a class and its bases are the user's, so that an instance has no values besides its attributes."""
        return not any(
            self._installed_version(base.__module__) for base in instance_class.__mro__ if base not in _PLAIN_BASES
        )

    def _installed_version(self, module_name: str | None) -> str:
        """Return the version of the package of a module, or "" for a module of the user."""
        package_name = (module_name or "").partition(".")[0]
        if package_name not in self._versions:
            self._versions[package_name] = _package_version(package_name)
        return self._versions[package_name]


def _package_version(package_name: str) -> str:
    """Return the version of an installed package, of Python or of this project; "" for a module of the user."""
    if package_name == "__main__":
        return ""
    if package_name == "builtins" or package_name in sys.stdlib_module_names:
        return f"python {platform.python_version()}"
    if package_name in _OWN_PACKAGES:
        return f"dureader_retrieval {VERSION}"
    # An editable package is outside of these folders, so it counts as the user's.
    module = sys.modules.get(package_name)
    module_paths = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
    if not any(folder in Path(path).parts for path in module_paths for folder in _PACKAGE_FOLDERS):
        return ""
    distribution_names = importlib.metadata.packages_distributions().get(package_name, ())
    versions = [f"{name} {importlib.metadata.version(name)}" for name in sorted(set(distribution_names))]
    if package_name == "jieba":
        versions.append(_jieba_words())
    return ", ".join(versions)


def _jieba_words() -> str:
    """Return a hash of the words of jieba, to which a program may add further words."""
    import jieba
    from jieba import finalseg

    word_cutter("jieba")  # loads the dictionary without messages
    jieba.initialize()
    words = sorted(jieba.dt.FREQ.items()), sorted(finalseg.Force_Split_Words)
    return _digest(repr(words)).hex()


def _module_file(module_name: str) -> bytes:
    """Return the digest of the file of a user's module. The main module, and a module without a file, have none."""
    module_path = getattr(sys.modules.get(module_name), "__file__", None)
    if module_name == "__main__" or module_path is None:
        return b""
    try:
        return hashlib.sha256(Path(module_path).read_bytes()).digest()
    except OSError as error:
        raise UnknownSource(f"the file of its module cannot be read: {error}") from error


def _digest(*parts: str | bytes) -> bytes:
    """Return the SHA-256 of parts, with their lengths, so that different parts have different digests."""
    digest = hashlib.sha256()
    for part in parts:
        part_bytes = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(part_bytes).to_bytes(8, "big"))
        digest.update(part_bytes)
    return digest.digest()


def _nested_code(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested_code(constant)


def _names(code_parts: Iterable[CodeType], *operations: str) -> set[str]:
    """Return the names that code uses in these operations of Python's bytecode."""
    names = set()
    for code in code_parts:
        for instruction in dis.get_instructions(code):
            if instruction.opname in operations:
                names.add(str(instruction.argval))
    return names
