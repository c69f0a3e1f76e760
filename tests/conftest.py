"""One CPU thread a process: tests run side by side, and threads of two processes on the same cores slow one another."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
