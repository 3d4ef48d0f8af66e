"""A tensor that is read element by element is copied to the client once, and reads give the same values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gt
from gt.client import host_copies
from gt.testing import cluster


@pytest.mark.parametrize("engine", ["numpy", "pytorch"])
def test_elements_read_one_by_one_come_from_one_copy(engine: str) -> None:
    with cluster(engine=engine):
        data = np.arange(120, dtype="f4").reshape(30, 4)
        x = gt.tensor(data)
        assert [x[i, 1].item() for i in range(30)] == data[:, 1].tolist()
        found = gt.debug.host_copies()
        assert found == {"tensors": 1, "bytes": data.nbytes, "served": 30 - host_copies.READS + 1}
        assert [row.tolist() for row in x] == data.tolist()
        assert [float(v) for v in x.t()[2]] == data.T[2].tolist() and int(x[3][2]) == 14 and bool(x[0, 0]) is False
        assert x.view(-1)[::7].view(3, 6)[1, 2].item() == data.reshape(-1)[::7].reshape(3, 6)[1, 2]
        assert x[:1].expand(3, 4)[2, 1].item() == data[0, 1] and x[:, None].diagonal()[0, 0].item() == data[0, 0]
        assert gt.debug.host_copies()["tensors"] == 1


def test_an_element_of_a_copied_tensor_needs_no_instruction(pool: Any) -> None:
    data = np.arange(24, dtype="f4").reshape(4, 3, 2)
    x = gt.tensor(data)
    for i in range(host_copies.READS):
        x[i % 4, 0, 0].item()
    session = x.handle.session
    before = host_copies.last_id(session)
    assert [x[i, j, -1].item() for i in range(-4, 4) for j in range(3)] == data[[*range(4)] * 2, :, -1].reshape(-1).tolist()
    assert x[2, 1].tolist() == data[2, 1].tolist() and x[(3,)].tolist() == data[3].tolist()
    assert [x[i][j][0].item() for i in range(4) for j in range(3)] == data[:, :, 0].reshape(-1).tolist()
    assert host_copies.last_id(session) == before, "a read of an element was an instruction"
    row = x[1]
    row[2][0].fill_(9.0)
    assert row[2, 0].item() == x[1, 2, 0].item() == 9.0 and row.tolist()[2] == [9.0, data[1, 2, 1]]
    x[1] = gt.tensor(data[1])
    assert row[2][0].item() == data[1, 2, 0] and row[()].tolist() == data[1].tolist()
    assert (x[1, 2] * 2).tolist() == (data[1, 2] * 2).tolist() and x[1, 2, 0].shape == ()
    x[3, 2, 1].fill_(70.0)
    assert x[3, 2, 1].item() == 70.0 and x[3, 2].tolist() == [22.0, 70.0]
    for wrong in ((4, 0, 0), (0, 0, 0, 0), (0, -4, 0)):
        with pytest.raises(IndexError):
            x[wrong]


def test_a_write_is_seen_by_the_next_read(pool: Any) -> None:
    x = gt.zeros(40)
    for i in range(40):
        assert x[i].item() == 0
    for i in range(40):
        x[i] = i
        assert x[i].item() == i and x[0].item() == 0


def test_reads_of_few_elements_or_of_large_tensors_copy_nothing(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = gt.debug.host_copies()["tensors"]
    x = gt.ones(50)
    for i in range(host_copies.READS - 1):
        x[i].item()
    monkeypatch.setattr(host_copies, "LARGEST", 100)
    y = gt.ones(50)
    for i in range(50):
        y[i].item()
    assert gt.debug.host_copies()["tensors"] == before


def test_copies_have_a_bound_in_bytes(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_copies, "LARGEST", 1000)
    for k in range(5):
        x = gt.full((100,), float(k))
        assert [x[i].item() for i in range(20)] == [k] * 20
        assert gt.debug.host_copies()["bytes"] <= 1000


def test_bfloat16_and_complex_elements_are_unchanged(pool: Any) -> None:
    x = gt.tensor([1.5, 2.5, -3.25], dtype=gt.bfloat16)
    z = gt.tensor([1 + 2j, 3 - 1j])
    for _ in range(10):
        assert [x[i].item() for i in range(3)] == [1.5, 2.5, -3.25]
        assert z[1].item() == 3 - 1j and z.imag[0].item() == 2 and z.conj()[0].item() == 1 - 2j
