"""GPUs that are not there, of whose memory torch's allocator tells."""

from __future__ import annotations

import pytest


def allocator(monkeypatch: pytest.MonkeyPatch, *gpus: tuple[int, int]) -> None:
    """Pretend GPUs with so many bytes before an answer, and at its peak."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: len(gpus))
    monkeypatch.setattr("torch.cuda.reset_peak_memory_stats", lambda gpu: None)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda gpu: gpus[gpu][0])
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda gpu: gpus[gpu][1])
