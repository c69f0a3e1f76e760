"""The launcher `pool`: each run has its own process, and the runs share the devices of this machine.

The processes are forks of a server that has imported what a run needs.
"""

import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from deepnets.config.schema import Config
from deepnets.distributed.signals import SIGNALS, Interrupted, Interruption, how_to_resume
from deepnets.distributed.spawn import Forked, ForkServer, ServerEnded, how_it_ended
from deepnets.errors import UserError
from deepnets.launch.grid import OUTPUT, Retry, Tally, failed_before
from deepnets.runs.execute import COMMAND, arguments_of
from deepnets.runs.folder import Locked, RunFolder
from deepnets.runs.record import describe_result
from deepnets.runs.resume import note_failure
from deepnets.runs.status import live_table
from deepnets.system.files import end_of
from deepnets.system.printing import print_error, print_line
from deepnets.system.settings import Size
from deepnets.training.hardware import find_device, with_counted_devices
from deepnets.training.step import check_device

POLL_SECONDS = 0.1
# Modules that take seconds to import. Every run imports the first ones late: torch's optimisers do, and the log. It
# imports the others where it needs them, and so did the checks of this command.
ALWAYS = ("torch._dynamo", "deepnets.monitor.dashboard")
HEAVY = ("sklearn.datasets", "sklearn.model_selection")


@dataclass(frozen=True)
class Pool:
    """Trains `runs_per_device` runs at once on each device; one that crashes does not affect the others.

    The devices are the GPUs that CUDA shows, or the CPU as one device; `device=cuda:1` means this GPU alone.
    By default, a GPU trains one run, and a CPU one per thread, which gives the most images/s: docs/performance.md.
    """

    in_process: ClassVar[bool] = False

    runs_per_device: Size | None
    retry: Retry | None

    def check(self, config: Config) -> None:
        """Check that this machine has the devices of a run, and that they can execute its steps.

        Raises:
            UserError: there are too few devices, or they cannot execute the steps.
        """
        device, devices = find_device(config.device), devices_of(config.device)
        check_device(config.step, device)
        if with_counted_devices(config).devices > len(devices) and device.type == "cuda":
            raise UserError(f"devices={config.devices}: device={config.device} offers {len(devices)} on this machine")

    def slots(self, name: str) -> "Slots":
        """Return the slots of the devices that `device=NAME` offers."""
        usual = torch.get_num_threads() if find_device(name).type == "cpu" else 1
        return Slots(devices_of(name), self.runs_per_device or usual)

    def check_all(self, runs: Mapping[RunFolder, Config]) -> None:
        """Accept any number of runs."""

    def queued(self, folders: Sequence[RunFolder]) -> None:
        """Return None: there is no queue."""

    def describe(self, runs: Mapping[RunFolder, Config]) -> list[str]:
        """Say how many runs train at once, if each has one device."""
        return [f"pool       up to {self.slots(next(iter(runs.values())).device).free} runs of one device at once"]

    def execute(self, runs: Mapping[RunFolder, Config]) -> int:
        """Train the runs that are not complete; returns 1 if one failed or was stopped, else 0.

        Raises:
            Interrupted: a signal came; the runs in flight are saved and the others do not start.
        """
        folders = list(runs)
        config = runs[folders[0]]
        tally = Tally(folders, before=failed_before(folders, self.retry))
        tally.begin()
        if not all(folder.is_complete for folder in folders):
            for line in self.describe(runs):
                print_line(line)
        with ExitStack() as held, Interruption() as interruption:
            pool = _Scheduler(tally, config, self.slots(config.device), held)
            try:
                with live_table(folders):
                    while pool.in_progress:
                        pool.step()
                        if interruption.received:
                            pool.stop(interruption.received)
                        time.sleep(POLL_SECONDS)
            except ServerEnded:  # which makes the runs in flight save
                raise
            except BaseException as error:  # a second Ctrl-C kills them; SIGTERM lets them save
                pool.stop_and_wait(signal.SIGKILL if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
                raise
        exit_code = tally.print()
        if interruption.received:
            stop = Interrupted(interruption.received)
            print_error(f"Stopped by {stop}; the runs in flight are saved. {how_to_resume()}.")
            raise stop
        return exit_code


class Slots:
    """Counts the free slots of each device: it has `per_device`, one for each run. All runs share the CPU's threads."""

    def __init__(self, devices: Collection[str | None], per_device: int) -> None:
        self._free = Counter(dict.fromkeys(devices, per_device))
        self._threads = max(1, torch.get_num_threads() // self.free)

    @property
    def free(self) -> int:
        """The number of free slots."""
        return self._free.total()

    def take(self, wanted: int) -> list[str | None]:
        """Take a slot of each of the `wanted` devices with the most free slots; returns [] if too few have any."""
        taken = [device for device, slots in self._free.most_common() if slots][:wanted]
        if len(taken) < wanted:
            return []
        self._free.subtract(taken)
        return taken

    def release(self, taken: Sequence[str | None]) -> None:
        """Give the slots on these devices back."""
        self._free.update(taken)

    def environment(self, taken: Sequence[str | None]) -> dict[str, str]:
        """Return the environment variables of a run on these devices, which set its threads and its GPUs."""
        threads = str(self._threads * len(taken))
        environment = {"OMP_NUM_THREADS": threads, "TORCHINDUCTOR_COMPILE_THREADS": threads}
        if gpus := _gpus_of(taken):
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        return environment


def devices_of(name: str) -> list[str | None]:
    """Return CUDA_VISIBLE_DEVICES for each device of `device=NAME`, or None to leave it (for a CPU or a named GPU)."""
    if find_device(name).type == "cpu" or ":" in name:
        return [None]
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    available = torch.cuda.device_count()  # CUDA ignores all names from the first wrong one on
    return [*shown.split(",")[:available]] if shown else [str(index) for index in range(available)]


def note_crash(folder: RunFolder, code: int) -> str:
    """Record that a run failed if it died before it could; returns the reason, from its exit code and output.

    Raises:
        Locked: another process has the folder.
    """
    reason = how_it_ended(code)
    if code >= 0:
        lines = [line.strip() for line in end_of(folder.path / OUTPUT).split("\n")]
        reason += f": {next(filter(None, reversed(lines)), 'no output')}"
    # If the run has several processes, the one that holds the lock may end a moment after its parent.
    with folder.hold(10 if code < 0 else 0):
        note_failure(folder, reason, f"{reason}\n")
    return reason


@dataclass
class _Child:
    """A run in flight: its process, and the devices that it has taken."""

    folder: RunFolder
    process: Forked
    devices: list[str | None]


@dataclass
class _Scheduler:
    """Starts the waiting runs while devices have free slots, and notes how the runs in flight end."""

    tally: Tally
    config: Config
    slots: Slots
    held: ExitStack

    def __post_init__(self) -> None:
        self.waiting = deque(folder for folder in self.tally.folders if folder not in self.tally.before)
        self.running: list[_Child] = []
        self.has_gpus = find_device(self.config.device).type == "cuda"
        self.stopped_by: int | None = None

    @property
    def in_progress(self) -> bool:
        """Whether a run waits or is in flight."""
        return bool(self.waiting or self.running)

    @cached_property
    def server(self) -> ForkServer:
        """The server that forks the runs; the first run starts it, and it ends with the context `held`."""
        environment = {**os.environ, **self.slots.environment([None])}
        modules = [*ALWAYS, *(name for name in HEAVY if name in sys.modules)]
        return self.held.enter_context(ForkServer(COMMAND, environment, modules))

    def step(self) -> None:
        """Note which runs have ended, and start others, in their order, while devices are free."""
        for child in [child for child in self.running if child.process.poll() is not None]:
            self.running.remove(child)
            self.slots.release(child.devices)
            self._note_end(child.folder, child.process.wait())
            self.tally.end()
        while self.waiting and self._start(self.waiting[0]):
            self.waiting.popleft()

    def stop(self, number: int) -> None:
        """Pass the signal on once to each run in flight, which then saves and ends; no other run starts."""
        if self.stopped_by is None:
            self.stopped_by = number
            self.waiting.clear()
            for child in self.running:
                child.process.send_signal(number)

    def stop_and_wait(self, number: int) -> None:
        """Send the signal to all runs in flight and wait until they have ended."""
        for child in self.running:
            child.process.send_signal(number)
        for child in self.running:
            child.process.wait()

    def _start(self, folder: RunFolder) -> bool:
        """Start the run unless it is complete or elsewhere; returns False if it must wait for a free slot."""
        if folder.is_complete:
            return True
        # On a CPU a run takes one slot, however many processes it has.
        devices = self.slots.take(with_counted_devices(folder.config).devices if self.has_gpus else 1)
        if not devices:
            return False
        try:
            with folder.hold():
                folder.discard_failure()
        except Locked as error:
            self.slots.release(devices)
            self.tally.skip(folder, error)
            return True
        process = self.server.start(arguments_of(folder), self.slots.environment(devices), folder.path / OUTPUT)
        self.running.append(_Child(folder, process, devices))
        gpus = _gpus_of(devices)
        print_line(self.tally.heading(folder) + (f" on GPU {', '.join(gpus)}" if gpus else ""))
        return True

    def _note_end(self, folder: RunFolder, code: int) -> None:
        """Print and note how a run ended; its process exited with `code`."""
        failed = self.tally.failed
        if folder.result is None and self.stopped_by is None:
            if code - 128 in SIGNALS:
                failed[folder] = f"stopped by {signal.Signals(code - 128).name} and saved"
            else:
                try:
                    failed[folder] = note_crash(folder, code)
                except Locked as error:  # another process took it between our check and the start
                    self.tally.skip(folder, error)
        if result := folder.completed:
            print_line(f"{folder}: {describe_result(result)}")
        elif folder.result and folder not in self.tally.elsewhere:
            failed[folder] = folder.result.reason
        if folder in failed:
            print_error(f"{folder}: failed: {failed[folder]}")
            if self.config.fail_fast:
                self.stop(signal.SIGTERM)


def _gpus_of(devices: Sequence[str | None]) -> list[str]:
    """Return the names of the GPUs among the devices, for CUDA_VISIBLE_DEVICES."""
    return sorted(device for device in devices if device is not None)
