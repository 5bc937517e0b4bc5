"""NVIDIA's libraries by ctypes: where they are looked for, what NCCL is asked; neither GPU nor library is needed."""

import ctypes
import gc
import weakref
from types import SimpleNamespace

import pytest
from checks import refused

from finelu.errors import DeviceError
from finelu.kernels.cuda.runtime import libraries, nccl


def test_a_wheel_is_looked_for_first(monkeypatch, tmp_path):
    class File(type(tmp_path)):
        def locate(self):
            return self

    files = [File(tmp_path / name) for name in ("cudss.h", "libcudss.so.1", "libcudss_mtlayer_gomp.so.1")]
    asked = []
    found = type("Wheel", (), {"files": files})
    monkeypatch.setattr(libraries, "distribution", lambda name: asked.append(name) or found)
    monkeypatch.setattr(libraries, "find_library", lambda name: f"lib{name}.so.0")
    assert list(libraries.places("a-wheel", "cudss", 1)) == [str(files[1]), "libcudss.so.1", "libcudss.so.0"]
    assert asked == ["a-wheel"]


def test_without_a_wheel_the_loader_is_asked(monkeypatch):
    monkeypatch.setattr(libraries, "find_library", lambda name: None)
    assert list(libraries.places("no-such-wheel-at-all", "nccl", 2)) == ["libnccl.so.2"]


# NCCL


class Fake:
    """A library, and the cupy.cuda around it, that write down what is asked of them; `fails` {function: status}."""

    def __init__(self, **fails):
        self.said = []
        for name in (*nccl.PROTOTYPES, "ncclGetErrorString"):
            setattr(self, name, self._function(name, fails.get(name, 0)))

    def _function(self, name, status):
        def call(*arguments):
            self.said.append((name, *(a for a in arguments if isinstance(a, int))))
            return b"something of its own" if name == "ncclGetErrorString" else status

        return call

    def Stream(self, non_blocking=False):
        own = "messages" if non_blocking else "current"
        return SimpleNamespace(
            ptr=99,
            wait_event=lambda event: self.said.append((own, "waits for", event.number)),
            synchronize=lambda: self.said.append((own, "synchronized")),
            name=own,
        )

    def Event(self, disable_timing):
        self.events = getattr(self, "events", 0) + 1
        number = self.events
        return SimpleNamespace(number=number, record=lambda stream: self.said.append((stream.name, "records", number)))

    get_current_stream = Stream


class Data(SimpleNamespace):  # which a weak reference can tell of
    pass


def array(address, nbytes):
    return Data(data=SimpleNamespace(ptr=address), nbytes=nbytes)


@pytest.fixture
def connection(monkeypatch):
    """connection(**fails): (a Connection of two processes, what was said)."""

    def make(**fails):
        fake = Fake(**fails)
        monkeypatch.setattr(nccl, "library", lambda: fake)
        monkeypatch.setattr(nccl, "import_module", lambda name: SimpleNamespace(cuda=fake))
        return nccl.Connection(nccl.new_identity(), 0, 2), fake.said

    return make


def test_messages_of_an_exchange_are_one_group_between_what_was_and_what_will_be_queued(connection):
    made, said = connection()
    said.clear()
    made.exchange([(3, array(1000, 16))], [(3, array(2000, 24))])
    made.wait()
    ready, done = 1, 2
    assert said == [
        ("current", "waits for", done),  # of the exchange before
        ("current", "records", ready),
        ("messages", "waits for", ready),
        ("ncclGroupStart",),
        ("ncclSend", 1000, 16, nccl.BYTES, 3, 99),
        ("ncclRecv", 2000, 24, nccl.BYTES, 3, 99),
        ("ncclGroupEnd",),
        ("messages", "records", done),
        ("current", "waits for", done),
    ]


def test_arrays_are_kept_until_the_stream_has_waited_for_their_messages(connection):
    made, said = connection()
    sent = array(1000, 16)
    weakref.finalize(sent, said.append, "the array is gone")
    made.exchange([(1, sent)], [])
    del sent
    made.wait()
    gc.collect()
    assert "the array is gone" not in said
    said.clear()
    made.exchange([], [])
    gc.collect()
    assert said.index(("current", "waits for", 2)) < said.index("the array is gone")


@pytest.mark.parametrize("which", ["ncclSend", "ncclRecv", "ncclGroupEnd", "ncclGroupStart"])
def test_what_it_refuses_is_an_error_and_the_group_is_ended(connection, which):
    made, said = connection(**{which: 4})
    with refused(DeviceError, match="NCCL: something of its own"):
        made.exchange([(1, array(1000, 16))], [(1, array(2000, 24))])
    if which in ("ncclSend", "ncclRecv"):
        assert ("messages", "records", 2) in said  # of what was queued before
    names = [name for name, *_ in said]
    assert names.count("ncclGroupEnd") == names.count("ncclGroupStart") - (which == "ncclGroupStart")


@pytest.mark.parametrize("which", ["ncclGetUniqueId", "ncclCommInitRank"])
def test_processes_that_cannot_be_connected(connection, which):
    with pytest.raises(DeviceError, match="NCCL_DEBUG=INFO"):
        connection(**{which: 2})


def test_a_connection_is_closed_once(connection):
    made, said = connection()
    made._handle.value = 5
    made.close()
    made.close()
    assert said[-2:] == [("messages", "synchronized"), ("ncclCommDestroy",)]
    assert [name for name, *_ in said].count("ncclCommDestroy") == 1


def test_a_library_that_is_there_not_there_or_no_library(monkeypatch, tmp_path, recwarn):
    fake = Fake()
    asked = []
    monkeypatch.setattr(nccl, "places", lambda *what: asked.append(what) or iter(["libno-such-nccl.so.2"]))
    assert nccl.found(13) is None and not recwarn and asked == [("nvidia-nccl-cu13", "nccl", 2)]
    (tmp_path / "libnccl.so.2").write_text("no library")
    monkeypatch.setattr(nccl, "places", lambda *_: iter([str(tmp_path / "libnccl.so.2"), "libno-such-nccl.so.2"]))
    with pytest.warns(UserWarning, match="NCCL cannot be used"):
        assert nccl.found(12) is None
    monkeypatch.setattr(ctypes, "CDLL", lambda name: fake)
    assert nccl.found(12) is fake
    del fake.ncclSend  # of a version before 2.7
    with pytest.warns(UserWarning, match="NCCL cannot be used.*ncclSend"):
        assert nccl.found(12) is None
    assert ctypes.sizeof(nccl.Identity) == 128
