"""One CPU thread a process: tests run side by side, and threads of two processes on the same cores slow one another."""

import os
import signal

# A shell's background job starts with Ctrl-C ignored, and would hand that on to the commands under test.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("OMP_NUM_THREADS", "1")
