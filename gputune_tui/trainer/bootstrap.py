"""First lines of a trial process under any interpreter: makes this package importable without touching sys.path.

With `--host` it is the warm host instead. That begins in this file too, since the file is `__main__` in every process
that is forked from it, which a loader worker started by spawn imports again.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def install() -> None:
    """Make `gputune_tui` importable from where this file lies; another environment's path stays as it is.

    Running a file puts its folder first on sys.path, where our `loader.py` would shadow other modules: it is taken out.
    """
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != PACKAGE / "trainer"]
    if "gputune_tui" in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(
        "gputune_tui", PACKAGE / "__init__.py", submodule_search_locations=[str(PACKAGE)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gputune_tui"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    install()
    if sys.argv[1:2] == ["--host"]:
        from gputune_tui.trainer.host import main as serve

        serve(sys.argv[2:])
    from gputune_tui.trainer.main import main

    main()
elif __name__ == "__mp_main__":
    # A loader worker started by spawn: what its parent sends it names classes of this package and of the workload.
    install()
    from gputune_tui.trainer.importing import find_workload_again

    find_workload_again()
