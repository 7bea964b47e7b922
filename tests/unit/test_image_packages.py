from __future__ import annotations

import os
import subprocess
import sys

from support.image_packages import left_out_of_numpy
from support.running_time import PATIENCE_S

PROGRAM = """
import numpy
from support.image_packages import without_what_the_image_leaves_out
with without_what_the_image_leaves_out():
    try:
        numpy.fft.fft
    except ModuleNotFoundError as error:
        print(error)
"""


def test_what_the_image_does_without_cannot_be_imported() -> None:
    assert {"numpy.fft", "numpy.f2py", "numpy.lib.recfunctions"} <= left_out_of_numpy()
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert "the broker's image does not hold it" in done.stdout
