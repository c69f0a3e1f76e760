"""Runs as processes over the devices of this machine, several at once on each."""

import signal
import subprocess
import time
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from deepnets.config.schema import Config
from deepnets.distributed.signals import RESUME, SIGNALS, Interrupted, Interruption
from deepnets.errors import UserError
from deepnets.launch.child import note_crash, start
from deepnets.launch.ending import Tally
from deepnets.launch.shares import Shares, devices_of, gpus_of
from deepnets.runs.folder import Locked, RunFolder
from deepnets.runs.record import describe_result
from deepnets.runs.status import live_table
from deepnets.system.printing import print_error, print_line
from deepnets.system.ranges import Size
from deepnets.training.hardware import find_device, with_counted_devices
from deepnets.training.step import check_device

POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Pool:
    """Trains `runs_per_device` runs at once on each device; one that crashes does not affect the others.

    The devices are the GPUs that CUDA shows, or the CPU as one; `device=cuda:1` is that one alone.
    """

    in_process: ClassVar[bool] = False

    runs_per_device: Size

    def check(self, config: Config) -> None:
        """Whether the devices of a run are there.

        Raises:
            UserError: says how many there are, or that they do not execute its steps.
        """
        device, devices = find_device(config.device), devices_of(config.device)
        check_device(config.step, device)
        if with_counted_devices(config).devices > len(devices) and device.type == "cuda":
            raise UserError(f"devices={config.devices}: device={config.device} offers {len(devices)} on this machine")

    def execute(self, folders: list[RunFolder], config: Config) -> int:
        """Returns 1 when a run failed or was stopped.

        Raises:
            Interrupted: a signal came; the runs in flight are saved and the others do not start.
        """
        pool = _Execution(Tally(folders), config, self.runs_per_device)
        with Interruption() as interruption:
            try:
                with live_table(folders):
                    while pool.in_progress:
                        pool.step()
                        if interruption.received:
                            pool.stop(interruption.received)
                        time.sleep(POLL_SECONDS)
            except BaseException as error:  # a second Ctrl-C kills them; SIGTERM lets them save
                pool.end(signal.SIGKILL if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
                raise
        exit_code = pool.tally.print()
        if interruption.received:
            stop = Interrupted(interruption.received)
            print_error(f"Stopped by {stop}; the runs in flight are saved. {RESUME}.")
            raise stop
        return exit_code


@dataclass
class _Child:
    folder: RunFolder
    process: subprocess.Popen[bytes]
    devices: list[str | None]


@dataclass
class _Execution:
    """The runs that wait, those in flight, and what is free for them."""

    tally: Tally
    config: Config
    runs_per_device: int

    def __post_init__(self) -> None:
        self.waiting = deque(self.tally.folders)
        self.running: list[_Child] = []
        self.shares = Shares(devices_of(self.config.device), self.runs_per_device)
        self.has_gpus = find_device(self.config.device).type == "cuda"
        self.stopped_by: int | None = None

    @property
    def in_progress(self) -> bool:
        return bool(self.waiting or self.running)

    def step(self) -> None:
        """Note which children have ended, and start runs, in their order, while devices are free."""
        for child in [child for child in self.running if child.process.poll() is not None]:
            self.running.remove(child)
            self.shares.release(child.devices)
            self._end(child.folder, child.process.returncode)
        while self.waiting and self._start(self.waiting[0]):
            self.waiting.popleft()

    def stop(self, number: int) -> None:
        """Pass the signal on once to each run in flight, which saves it; no other starts."""
        if self.stopped_by is None:
            self.stopped_by = number
            self.waiting.clear()
            for child in self.running:
                child.process.send_signal(number)

    def end(self, number: int) -> None:
        """Send the signal to all runs in flight and wait for their end."""
        for child in self.running:
            child.process.send_signal(number)
        for child in self.running:
            child.process.wait()

    def _start(self, folder: RunFolder) -> bool:
        """Whether nothing is left to do for the run but to wait for its end; False when it must wait for devices."""
        if self.tally.is_complete(folder):
            return True
        # All processes of a run share the CPU.
        devices = self.shares.take(with_counted_devices(folder.config).devices if self.has_gpus else 1)
        if not devices:
            return False
        try:
            with folder.hold():
                folder.retry()
        except Locked as error:
            self.shares.release(devices)
            self.tally.skip(folder, error)
            return True
        process = start(folder, self.config.trusted_targets, self.shares.environment(devices))
        self.running.append(_Child(folder, process, devices))
        gpus = gpus_of(devices)
        print_line(self.tally.heading(folder) + (f" on GPU {', '.join(gpus)}" if gpus else ""))
        return True

    def _end(self, folder: RunFolder, code: int) -> None:
        failed = self.tally.failed
        if folder.result is None and self.stopped_by is None:
            if code - 128 in SIGNALS:
                failed[folder] = f"stopped by {signal.Signals(code - 128).name} and saved"
            else:
                try:
                    failed[folder] = note_crash(folder, code)
                except Locked as error:  # taken between our look and the child's start
                    self.tally.skip(folder, error)
        if result := folder.completed:
            print_line(f"{folder}: {describe_result(result)}")
        elif folder.result and folder not in self.tally.elsewhere:
            failed[folder] = folder.result.reason
        if folder in failed:
            print_error(f"{folder}: failed: {failed[folder]}")
            if self.config.fail_fast:
                self.stop(signal.SIGTERM)
