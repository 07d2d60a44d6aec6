"""Where the checks run: on a GPU, or on this host in its place.

Everything that differs between the two is in these classes, so that a dry run executes what a GPU
will execute: the same cases, comparisons, formulas and tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

import kvp_ext

Run = Callable[[], Any]


class Target(Protocol):
    """A device, its clock and its streams.

    Attributes:
        device: where tensors go.
        is_dry: whether a host stands in for a GPU; shapes are then small.
        backends: what is compared with `python_ref`; the first are the kernels under test.
        timed: the backend that is timed.
    """

    name: str
    device: torch.device
    is_dry: bool
    backends: list[str]
    timed: str

    def synchronize(self) -> None:
        """Waits for the device, and raises what went wrong there."""

    def free_bytes(self) -> int:
        """Memory that a check may use."""

    def cache_bytes(self) -> int:
        """Size of the cache that timed inputs have to leave."""

    def time_ms(self, run: Run, lead_ms: float) -> tuple[float, float]:
        """How long the device takes for `run`, and the host to enqueue it.

        The device begins `lead_ms` late, so that what the host takes less than that does not count.
        """

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`torch.compile`."""

    def forbid_waiting(self) -> AbstractContextManager[None]:
        """Inside, torch raises where the host would wait for the device."""

    def capture(self, run: Run) -> tuple[Run, Any]:
        """`run` as something to replay, and what the last replay returned, as it is written."""

    def on_side_stream(self, run: Run) -> None:
        """Runs on a stream of its own, which begins late, and lets this stream wait for it."""

    def allocations(self) -> dict[str, int]:
        """Bytes that torch's allocator holds and held at most, and its calls of the device's."""

    def reset_peak(self) -> None:
        """Lets the most that was held begin at what is held now."""

    def release(self) -> None:
        """Gives cached memory back, so that `free_bytes` counts it."""


class HostTarget:
    """The CPU, with a wall clock in place of events and plain calls in place of graphs."""

    name = "host"
    is_dry = True

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        # The CUDA kernels themselves, run on the host, where this build has them.
        kernels = "simt" if "simt" in kvp_ext.backends() else "cpu"
        self.backends = [kernels, "reference"]
        self.timed = "cpu"

    def synchronize(self) -> None:
        pass

    def free_bytes(self) -> int:
        return 1 << 30

    def cache_bytes(self) -> int:
        return 1 << 16

    def time_ms(self, run: Run, lead_ms: float) -> tuple[float, float]:
        start = time.perf_counter()
        run()
        ms = (time.perf_counter() - start) * 1e3
        return ms, ms

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # Traced only: its time on a host is nobody's question.
        return torch.compile(function, backend="eager")

    def forbid_waiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def capture(self, run: Run) -> tuple[Run, Any]:
        static = run()

        def replay() -> None:
            again = run()
            for old, new in ((static.lengths, again.lengths), (static.pos, again.pos)):
                old.copy_(new)
            static.kept.copy_(again.kept)

        return replay, static

    def on_side_stream(self, run: Run) -> None:
        run()

    def allocations(self) -> dict[str, int]:
        return {"bytes": 0, "peak_bytes": 0, "device_calls": 0}

    def reset_peak(self) -> None:
        pass

    def release(self) -> None:
        pass


class CudaTarget:
    """The current GPU."""

    name = "cuda"
    is_dry = False

    # Of a spin, at about the highest clock of these devices; a slower one spins longer.
    _CYCLES_PER_MS = 2_000_000
    _LATE_MS = 20.0

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("torch finds no CUDA device")
        found = kvp_ext.backends()
        if not found["cuda"].startswith("available"):
            raise RuntimeError(f"backend 'cuda': {found['cuda']}")
        self.device = torch.device("cuda", torch.cuda.current_device())
        others = [b for b in ("triton",) if found.get(b, "").startswith("available")]
        self.backends = ["cuda", *others, "reference"]
        self.timed = "cuda"

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def free_bytes(self) -> int:
        return int(torch.cuda.mem_get_info()[0])

    def cache_bytes(self) -> int:
        return int(torch.cuda.get_device_properties(self.device).L2_cache_size)

    def time_ms(self, run: Run, lead_ms: float) -> tuple[float, float]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        self._spin(lead_ms)
        start.record()
        begun = time.perf_counter()
        run()
        host_ms = (time.perf_counter() - begun) * 1e3
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)), host_ms

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function)

    @contextmanager
    def forbid_waiting(self) -> Iterator[None]:
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def capture(self, run: Run) -> tuple[Run, Any]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            static = run()
        return graph.replay, static

    def on_side_stream(self, run: Run) -> None:
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            # Work that went to another stream by mistake overtakes this.
            self._spin(self._LATE_MS)
            run()
            done = torch.cuda.Event()
            done.record(side)
        main.wait_event(done)

    def allocations(self) -> dict[str, int]:
        stats = torch.cuda.memory_stats()
        return {
            "bytes": stats["allocated_bytes.all.current"],
            "peak_bytes": stats["allocated_bytes.all.peak"],
            "device_calls": stats.get("num_device_alloc", 0),
        }

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def release(self) -> None:
        torch.cuda.empty_cache()

    def _spin(self, ms: float) -> None:
        torch.cuda._sleep(int(ms * self._CYCLES_PER_MS))


def target_named(name: str) -> Target:
    """The target "host" or "cuda"; raises RuntimeError where it cannot work."""
    return {"host": HostTarget, "cuda": CudaTarget}[name]()


class Twin:
    """Copies tensors to a device with their whole storage.

    Strides, offsets and gaps stay what they are, views of one storage stay views of one, and what
    lies between the rows can be compared afterwards.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._storages: dict[int, tuple[Tensor, Tensor]] = {}

    def place(self, t: Tensor) -> Tensor:
        """The counterpart of a CPU tensor."""
        key = t.untyped_storage().data_ptr()
        if key == 0:
            return t.to(self._device)
        if key not in self._storages:
            whole = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage())
            self._storages[key] = (whole, whole.to(self._device, copy=True))
        return self._view(self._storages[key][1], t)

    def fetch(self, t: Tensor) -> Tensor:
        """What the counterpart of a CPU tensor holds now, on the CPU, with the same strides."""
        key = t.untyped_storage().data_ptr()
        return t if key == 0 else self._view(self._storages[key][1].cpu(), t)

    def gaps(self, views: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Bytes before and after of every element in the storages of `views` outside of them."""
        for key, (was, there) in self._storages.items():
            inside = [v for v in views if v.untyped_storage().data_ptr() == key]
            if not inside:
                continue
            outside = torch.ones(was.shape, dtype=torch.bool)
            for view in inside:
                self._view(outside, view).fill_(False)
            yield was[outside], there.cpu()[outside]

    @staticmethod
    def _view(whole: Tensor, like: Tensor) -> Tensor:
        return whole.as_strided(like.shape, like.stride(), like.storage_offset())
