"""Connect to a Ray cluster, and check that its machines have the packages of this machine."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import logging
import os
import platform
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from builders.core.errors import InputError, install_command

RETRIES = 3  # how often a task runs again after the loss of its process or machine
_CONNECT_SECONDS = 10
_BUILDERS_FOLDER = Path(__file__).parents[1]
# Addresses that Ray itself looks up.
_NAMES_OF_RAY = ("auto", "local")


class RayConnection:
    """A connection of this process to a cluster. A context manager.

    A connection that the process has already is used, and stays open.

    Args:
        address: address of the cluster's head (``host:6379``, ``auto``). The default is ``RAY_ADDRESS``, else a cluster
            that runs on this machine, else a new local cluster.
        local_cpus: CPUs of a new local cluster (default: all).
        code_folders: packages that Ray sends to the machines, besides ``builders``.

    Raises:
        InputError: Ray is not installed, or no cluster answers.
    """

    def __init__(
        self, address: str | None = None, *, local_cpus: int | None = None, code_folders: Sequence[Path] = ()
    ) -> None:
        self.ray = import_ray()
        self._is_own_connection = not self.ray.is_initialized()
        if self._is_own_connection:
            self._connect(address or os.environ.get("RAY_ADDRESS"), local_cpus, code_folders)

    def _connect(self, address: str | None, local_cpus: int | None, code_folders: Sequence[Path]) -> None:
        """Connect to the cluster at ``address``; None for a cluster of this machine. Raises :class:`InputError`."""
        sent_folders = [str(folder) for folder in (_BUILDERS_FOLDER, *code_folders)]
        settings: dict[str, Any] = {
            # Ray sends this program to the machines. Its dependencies must be installed on every machine.
            "runtime_env": {"py_modules": sent_folders},
            "logging_level": logging.ERROR,
            "log_to_driver": False,
        }
        try:
            with _keep_sigterm_handler():
                if address is None:
                    self._connect_here(local_cpus, settings)
                else:
                    if address not in _NAMES_OF_RAY:
                        _expect_server(address)
                    self.ray.init(address, **settings)
        except (OSError, RuntimeError, ValueError) as error:
            raise _no_answer(address, error) from None

    def _connect_here(self, local_cpus: int | None, settings: dict[str, Any]) -> None:
        """Connect to a cluster that runs on this machine, else start one with ``local_cpus`` CPUs (default: all).

        ``settings`` are further arguments of ``ray.init``.
        """
        try:
            self.ray.init("auto", **settings)
        except ConnectionError:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            self.ray.init("local", num_cpus=local_cpus, include_dashboard=False, **settings)

    def __enter__(self) -> Self:
        # Ray prints messages about late or lost nodes to stdout, which is reserved for results.
        self._stdout = contextlib.redirect_stdout(sys.stderr)
        self._stdout.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._is_own_connection:
            self.ray.shutdown()
        self._stdout.__exit__(*error)


def import_ray() -> Any:
    """Return the module ``ray``. Raises :class:`InputError` if Ray is not installed."""
    try:
        import ray
    except ImportError as error:
        raise InputError(f"--engine ray needs Ray ({error}): {install_command('ray')}") from None
    return ray


def check_ray(address: str | None) -> None:
    """Raise :class:`InputError` if Ray is not installed, or no server answers at the address of a cluster.

    A call takes milliseconds after the import of Ray, so that a wrong address is reported before the work begins.
    """
    import_ray()
    address = address or os.environ.get("RAY_ADDRESS")
    if address is None or address in _NAMES_OF_RAY:
        return
    try:
        _expect_server(address)
    except (OSError, ValueError) as error:
        raise _no_answer(address, error) from None


def _no_answer(address: str | None, error: Exception) -> InputError:
    """Return the error for a cluster that cannot be reached, with the first line of the reason ``error``."""
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return InputError(
        f"no Ray cluster answers at {address or 'this machine'} ({reason});"
        " start a head with `ray start --head` and give its HOST:PORT"
    )


def _expect_server(address: str) -> None:
    """Raise OSError or ValueError if no server answers at an address, because Ray would retry for minutes."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")  # of an IPv6 address
    socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()


@contextlib.contextmanager
def _keep_sigterm_handler() -> Any:
    """Restore the handler of SIGTERM, because Ray's handler would end the command with another exit code."""
    is_main_thread = threading.current_thread() is threading.main_thread()
    earlier_handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if is_main_thread:  # Python sets handlers only there
            signal.signal(signal.SIGTERM, earlier_handler)


@functools.cache
def installed_versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of Python and of packages on this machine. A missing package has the version "none"."""
    major, minor, _ = platform.python_version_tuple()
    versions = {"Python": f"{major}.{minor}"}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "none"
    return versions


def expect_versions(expected_versions: Mapping[str, str], command: str) -> None:
    """Raise :class:`InputError` if this machine has other versions than the machine that began the work.

    ``command`` names the work in the error, for example "build".
    """
    packages = tuple(package for package in expected_versions if package != "Python")
    for package, version in installed_versions(packages).items():
        if version != expected_versions[package]:
            raise InputError(
                f"the machine {socket.gethostname()} has {package} {version}, but the {command} was started with"
                f" {expected_versions[package]}; install the same version on all machines"
            )
