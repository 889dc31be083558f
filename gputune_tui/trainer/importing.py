"""Import a user's workload file or module without disturbing what else can be imported, and hash its sources."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gputune_tui.domain.builtin import builtin_path
from gputune_tui.domain.study import names_file, split_name
from gputune_tui.errors import WorkloadError
from gputune_tui.trainer.describe import describe_exception, place_of

PACKAGE_NAME = "gputune_user_workload"
"""Name of the package that stands for the folder of a workload file, so that `from .helpers import x` works."""
FILE_VARIABLE = "GPUTUNE_WORKLOAD_FILE"
"""Environment variable with the workload file of this process, for loader workers that are started by spawn."""


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
    if names_file(target):
        path = Path(target).expanduser()
        if not path.is_file():
            raise WorkloadRefused(f"there is no file {path}")
        if path.suffix != ".py":
            raise WorkloadRefused(f"{path} is no Python file: its name must end with .py")
        return _import_file(path.resolve(), name), class_name
    if not all(part.isidentifier() for part in target.split(".")):
        raise _no_such(target)
    return _import_module(target, name), class_name


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Compiles the file each time: its cached bytecode tells an edit apart by the second and the size alone."""

    def path_stats(self, path: Any) -> Any:
        """What the cache is checked against; an error makes Python do without it."""
        raise OSError("no cached bytecode")


def is_builtin(name: str) -> bool:
    """True for the name of a built-in workload."""
    return builtin_path(split_name(name)[0]) is not None


def _import_file(path: Path, name: str) -> types.ModuleType:
    root, module_name = _place_in_package(path)
    package = types.ModuleType(PACKAGE_NAME)
    package.__path__ = [str(root)]
    sys.modules[PACKAGE_NAME] = package
    # At the end, so that a helper named like a standard or installed module does not take its place.
    sys.path.extend(str(folder) for folder in dict.fromkeys((path.parent, root)) if str(folder) not in sys.path)
    os.environ[FILE_VARIABLE] = str(path)
    spec = importlib.util.spec_from_file_location(module_name, path, loader=_SourceLoader(module_name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _CleanArguments(str(path)):
        try:
            importlib.import_module(module_name.rpartition(".")[0])
            sys.modules[module_name] = module
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:  # whatever the user's module raises is a fault to name
            raise WorkloadFault(_import_message(name, error)) from error
    return module


def _place_in_package(path: Path) -> tuple[Path, str]:
    """The folder that the package stands for, and the file's module in it."""
    root = _package_root(path) if _imports_relatively(path) else path.parent
    parent = ".".join((PACKAGE_NAME, *path.parent.relative_to(root).parts))
    # A dot in the file's name would make a package of what stands before it.
    return root, f"{parent}.{path.stem.replace('.', '_')}"


def find_workload_again() -> None:
    """Let a process that did not import the workload file find its module when a pickle names it."""
    if (file := os.environ.get(FILE_VARIABLE)) is not None:
        sys.meta_path.insert(0, _WorkloadFinder(Path(file)))


class _WorkloadFinder(importlib.abc.MetaPathFinder):
    """Finds the package of a workload file and the file's module in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._root, self._module_name = _place_in_package(path)

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == self._module_name:
            loader = _SourceLoader(fullname, str(self._path))
            return importlib.util.spec_from_file_location(fullname, self._path, loader=loader)
        if fullname != PACKAGE_NAME:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [str(self._root)]
        return spec


def _imports_relatively(path: Path) -> bool:
    """Whether a file is written as part of a package: only then do the packages around it run."""
    try:
        nodes = ast.walk(ast.parse(path.read_bytes()))
    except (SyntaxError, ValueError, OSError):
        return False  # its import will tell
    return any(isinstance(node, ast.ImportFrom) and node.level > 0 for node in nodes)


def _package_root(path: Path) -> Path:
    """The folder above all packages around a file, so that `from ..models import x` works."""
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        folder = folder.parent
    return folder


def _import_module(target: str, name: str) -> types.ModuleType:
    # A module beside the user is found as `python -m` would find it, after everything installed.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    with _CleanArguments(target):
        try:
            return importlib.import_module(target)
        except ModuleNotFoundError as error:
            if error.name is not None and (target == error.name or target.startswith(error.name + ".")):
                raise _no_such(target) from error
            raise WorkloadFault(_import_message(name, error)) from error
        except (Exception, SystemExit) as error:  # whatever the user's module raises is a fault to name
            raise WorkloadFault(_import_message(name, error)) from error


def _no_such(target: str) -> WorkloadRefused:
    return WorkloadRefused(
        f"there is no workload, file or module {target!r}; gputune-tui workloads lists the built-in ones, "
        "and a file is written ./name.py"
    )


def _import_message(name: str, error: BaseException) -> str:
    if isinstance(error, SystemExit):
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
    """SHA-256 over the workload's file and every module it loaded from its own folders, by path relative to them."""
    main = Path(module.__file__ or "").resolve()
    root = _package_root(main)
    sources: dict[str, bytes] = {}
    folders: dict[str, str] = {}
    for loaded in list(sys.modules.values()):
        file = getattr(loaded, "__file__", None)
        # torch's pseudo-modules carry relative names such as "_ops.py", which are no files of the user's folder.
        if not isinstance(file, str) or not file.endswith(".py") or not os.path.isabs(file):
            continue
        folder = os.path.dirname(file)
        if folder not in folders:
            # Thousands of modules lie in hundreds of folders: resolving each file would take a third of a second.
            folders[folder] = os.path.realpath(folder)
        path = os.path.join(folders[folder], os.path.basename(file))
        if os.path.islink(path):
            path = os.path.realpath(path)
        if path == str(main) or (_is_below(path, str(root)) and _is_users(loaded, path)):
            sources[Path(path).relative_to(root).as_posix()] = Path(path).read_bytes()
    digest = hashlib.sha256()
    for relative, source in sorted(sources.items()):
        digest.update(os.fsencode(relative) + b"\0" + hashlib.sha256(source).digest())
    return digest.hexdigest()


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def _is_users(loaded: types.ModuleType, path: str) -> bool:
    """False for our own package, installed ones and the standard library, which may lie under the same folder."""
    top = loaded.__name__.partition(".")[0]
    installed = {"site-packages", "dist-packages"} & set(path.split(os.sep))
    return not installed and top != "gputune_tui" and top not in sys.stdlib_module_names
