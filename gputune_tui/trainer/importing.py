"""Import a user's workload file or module without disturbing what else can be imported, and hash its sources."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import types
from pathlib import Path

from gputune_tui.domain.builtin import builtin_path
from gputune_tui.errors import WorkloadError
from gputune_tui.trainer.describe import describe_exception

PACKAGE_NAME = "gputune_user_workload"
"""Name of the package that stands for the folder of a workload file, so that `from .helpers import x` works."""


class WorkloadFault(WorkloadError):
    """The user's own code failed; the message holds their exception, file and line."""


class WorkloadRefused(WorkloadFault):
    """What was asked for does not exist: no such file, module, class or option."""


def import_workload(name: str) -> tuple[types.ModuleType, str | None]:
    """Import the module that a workload's name means; returns it and the class named after a colon.

    Raises:
        WorkloadRefused: there is no such file or module.
        WorkloadFault: its import failed.
    """
    target, class_name = split_name(name)
    builtin = builtin_path(target)
    if builtin is not None:
        return _import_file(builtin, name), class_name
    if target.endswith(".py") or "/" in target:
        path = Path(target).expanduser()
        if not path.is_file():
            raise WorkloadRefused(f"there is no file {path}")
        return _import_file(path.resolve(), name), class_name
    return _import_module(target, name), class_name


def split_name(name: str) -> tuple[str, str | None]:
    """`path.py:Class` and `package.module:Class` in two; a colon inside a path stays in it."""
    target, colon, class_name = name.rpartition(":")
    return (target, class_name) if colon and class_name.isidentifier() else (name, None)


def _import_file(path: Path, name: str) -> types.ModuleType:
    folder = path.parent
    package = types.ModuleType(PACKAGE_NAME)
    package.__path__ = [str(folder)]
    sys.modules[PACKAGE_NAME] = package
    # At the end, so that a helper named like a standard or installed module does not take its place.
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    module_name = f"{PACKAGE_NAME}.{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    with _CleanArguments(str(path)):
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:  # whatever the user's module raises is a fault to name
            raise WorkloadFault(_import_message(name, error)) from error
    return module


def _import_module(target: str, name: str) -> types.ModuleType:
    # A module beside the user is found as `python -m` would find it, after everything installed.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    with _CleanArguments(target):
        try:
            return importlib.import_module(target)
        except ModuleNotFoundError as error:
            if error.name is not None and (target == error.name or target.startswith(error.name + ".")):
                raise WorkloadRefused(
                    f"there is no workload, file or module {target!r}; gputune-tui workloads lists the built-in ones, "
                    "and a file is written ./name.py"
                ) from error
            raise WorkloadFault(_import_message(name, error)) from error
        except (Exception, SystemExit) as error:
            raise WorkloadFault(_import_message(name, error)) from error


def _import_message(name: str, error: BaseException) -> str:
    if isinstance(error, SystemExit):
        from gputune_tui.trainer.describe import place_of

        where = place_of(error)
        return f"importing {name} ended the program (SystemExit {error.code}){f' at {where}' if where else ''}"
    return f"importing {name} failed: {describe_exception(error)}"


class _CleanArguments:
    """A module that parses the command line at import sees one of its own, not ours."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._kept: list[str] = []

    def __enter__(self) -> None:
        self._kept, sys.argv = sys.argv, [self._program]

    def __exit__(self, *_: object) -> None:
        sys.argv = self._kept


def content_hash(module: types.ModuleType) -> str:
    """SHA-256 over the workload's file and every module it loaded from its own folder, by path relative to it."""
    main = Path(module.__file__ or "").resolve()
    root = main.parent
    sources: dict[str, bytes] = {}
    for loaded in list(sys.modules.values()):
        file = getattr(loaded, "__file__", None)
        # torch's pseudo-modules carry relative names such as "_ops.py", which are no files of the user's folder.
        if not isinstance(file, str) or not file.endswith(".py") or not Path(file).is_absolute():
            continue
        path = Path(file).resolve()
        installed = "site-packages" in path.parts or "dist-packages" in path.parts
        if path == main or (root in path.parents and not installed and _is_users(loaded, path)):
            sources[path.relative_to(root).as_posix()] = path.read_bytes()
    digest = hashlib.sha256()
    for relative, source in sorted(sources.items()):
        digest.update(relative.encode() + b"\0" + hashlib.sha256(source).digest())
    return digest.hexdigest()


def _is_users(loaded: types.ModuleType, path: Path) -> bool:
    """False for our own package and the standard library, which may lie under the same folder as a workload."""
    top = loaded.__name__.partition(".")[0]
    return top != "gputune_tui" and top not in sys.stdlib_module_names
