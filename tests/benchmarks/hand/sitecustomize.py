"""An instrument of its own beside the trial's: writes when each optimizer step of each rank ended (SGD.step).

Put on PYTHONPATH behind the trial's start-up hook, which runs this one after itself.
"""

import atexit
import importlib.abc
import importlib.util
import os
import sys
import time


class _AfterOptimizers(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, _path, _target=None):
        if fullname != "torch.optim.sgd":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            _wrap(module.SGD)

        spec.loader.exec_module = exec_module
        return spec


def _wrap(optimizer_class):
    times = []
    step = optimizer_class.step

    def counted(self, closure=None):
        result = step(self, closure)
        times.append(time.perf_counter())
        return result

    optimizer_class.step = counted

    def write():
        if times:
            path = f"{os.environ['HAND_STEPS']}.{os.environ.get('RANK', '0')}.{os.getpid()}"
            with open(path, "w") as out:
                out.write("\n".join(map(repr, times)))

    atexit.register(write)


if "HAND_STEPS" in os.environ:
    sys.meta_path.insert(0, _AfterOptimizers())
