"""Where machine code comes from, and what happens where it cannot be kept."""

import errno
import os
import shutil
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock
import pytest
import torch
from kernels import Counting, add

from opmux.plugin import BuildDeferred, BuildFailed, CaptureRefused
from opmux.policy import override
from opmux.running.background import building_here
from opmux_jit import CompileFailed, CompilerMissing, KernelMissing, Source, cache_root, compilers, machine_code
from opmux_jit.cache import entry, files, layers, store, tending
from opmux_jit.compilers import choice


@pytest.fixture
def compiler(monkeypatch) -> Counting:
    """The only compiler there is."""
    made = Counting()
    monkeypatch.setattr(choice, "find", lambda name: made if name == made.name else None)
    return made


def again(source: Source) -> entry.Entry:
    """As another process would ask."""
    layers.forget()
    return machine_code(source)


def test_it_is_built_once_and_found_after_that(compiler, cache) -> None:
    first = machine_code(add())
    assert first.code == f"add sm_90 {add().text}".encode()
    assert machine_code(add()) is first
    found = again(add())
    assert (found.code, found.builds, found.place) == (first.code, 1, first.place)
    assert found.source == add()
    assert compiler.count == 1
    assert first.place is not None
    assert first.place.is_relative_to(cache / "v1")
    assert list((cache / "building").iterdir()) == []


def test_what_is_made_belongs_to_the_user_alone(compiler, cache) -> None:
    before = os.umask(0)
    try:
        machine_code(add())
    finally:
        os.umask(before)
    for folder in (cache, *(p for p in cache.rglob("*") if p.is_dir())):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_another_compiler_version_arch_or_source_is_another_entry(compiler) -> None:
    machine_code(add())
    compiler.version = "13.6"
    again(add())
    again(add(arch="sm_80"))
    again(add("other"))
    assert compiler.count == 4


def test_without_a_compiler_what_is_there_serves(compiler, monkeypatch) -> None:
    code = machine_code(add()).code
    monkeypatch.setattr(choice, "find", lambda name: None)
    assert again(add()).code == code
    with pytest.raises(CompilerMissing, match=r"^other: no compiler for sm_90"):
        machine_code(add("other"))


def damage(place: Path, how: str) -> None:
    code, manifest = place / "code.bin", place / "manifest.json"
    if how == "truncated":
        code.write_bytes(code.read_bytes()[:-1])
    elif how == "flipped":
        data = bytearray(code.read_bytes())
        data[len(data) // 2] ^= 1
        code.write_bytes(data)
    elif how == "code gone":
        code.unlink()
    elif how == "source flipped":
        (place / "source.cu").write_bytes((place / "source.cu").read_bytes().replace(b"+", b"-"))
    elif how == "manifest gone":
        manifest.unlink()
    elif how == "manifest truncated":
        manifest.write_bytes(manifest.read_bytes()[:-10])
    elif how == "manifest empty":
        manifest.write_bytes(b"")
    elif how == "manifest edited":
        manifest.write_bytes(manifest.read_bytes().replace(b'"builds": 1', b'"builds": 7'))
    elif how == "manifest of a list":
        manifest.write_bytes(b"[]")
    elif how == "manifest lacks a field":
        stated = files.unsealed(manifest.read_bytes())
        del stated["compiler"]
        manifest.write_bytes(files.sealed(stated))
    elif how == "other format":
        manifest.write_bytes(files.sealed({**files.unsealed(manifest.read_bytes()), "format": 99}))
    elif how == "foreign":
        other = machine_code(add("other")).place
        assert other is not None
        for path in other.iterdir():
            (place / path.name).write_bytes(path.read_bytes())


DAMAGES = {
    "truncated": "code.bin has 175 bytes, 176 were written",
    "flipped": "code.bin: its checksum does not match",
    "code gone": "code.bin cannot be read (No such file or directory)",
    "source flipped": "source.cu: its checksum does not match",
    "manifest gone": "manifest.json cannot be read (No such file or directory)",
    "manifest truncated": "not JSON",
    "manifest empty": "not JSON",
    "manifest edited": "its own checksum does not match",
    "manifest of a list": "not an object",
    "manifest lacks a field": "manifest.json lacks what an entry has ('compiler')",
    "other format": "its format is 99, this package reads 1",
    "foreign": "it is the entry of another key, ",
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_entry_is_reported_and_built_again(compiler, caplog, how) -> None:
    first = machine_code(add())
    assert first.place is not None
    damage(first.place, how)
    count = compiler.count
    found = again(add())
    assert (found.code, found.place, compiler.count) == (first.code, first.place, count + 1)
    assert found.builds == 2
    (said,) = [r.getMessage() for r in caplog.records]
    assert said.startswith(f"cache entry {first.place} is damaged, and is built again: {DAMAGES[how]}")
    assert again(add()).builds == 2


@pytest.mark.parametrize("number", range(0, 176 * 8, 97))
def test_any_flipped_bit_of_the_code_is_seen(compiler, number) -> None:
    first = machine_code(add())
    assert first.place is not None
    data = bytearray((first.place / "code.bin").read_bytes())
    data[number // 8] ^= 1 << number % 8
    (first.place / "code.bin").write_bytes(data)
    assert again(add()).code == first.code


WRITES = ("make_folder", "write_file")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
@pytest.mark.parametrize("at", range(12))
def test_a_disk_that_is_full_or_read_only_costs_no_call(compiler, monkeypatch, caplog, cache, at, number) -> None:
    """Every write of a build fails once, and from then on."""
    done = 0

    def failing(name):
        real = getattr(files, name)

        def write(*arguments):
            nonlocal done
            done += 1
            if done > at:
                raise OSError(number, os.strerror(number))
            return real(*arguments)

        return write

    for name in WRITES:
        monkeypatch.setattr(files, name, failing(name))
    made = machine_code(add())
    assert made.code == f"add sm_90 {add().text}".encode()
    assert compiler.count == 1
    said = [r.getMessage() for r in caplog.records]
    if done > at:
        assert made.place is None
        (line,) = said
        assert line.startswith(f"the cache {cache} cannot be written (")
        assert os.strerror(number) in line
        assert line.endswith("; kernels built by this process are not kept")
    else:
        assert said == []
    monkeypatch.undo()
    assert machine_code(add()) is made


def test_the_faults_above_reach_every_write_of_a_build(compiler, monkeypatch) -> None:
    count = 0

    def counting(real):
        def write(*arguments):
            nonlocal count
            count += 1
            return real(*arguments)

        return write

    for name in WRITES:
        monkeypatch.setattr(files, name, counting(getattr(files, name)))
    machine_code(add())
    assert 8 < count <= 12 + 3  # make_folder calls itself


def test_a_read_only_cache_serves_what_it_has(compiler, cache, caplog) -> None:
    """As another user: the permissions of root are none."""
    first = machine_code(add())
    folders = [cache, *(p for p in cache.rglob("*") if p.is_dir())]
    outer = [p for p in cache.parents if str(p).startswith(str(Path(os.environ.get("TMPDIR", "/tmp"))) + "/")]
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in (*folders, *outer, *cache.rglob("*"))}
    for path in modes:
        path.chmod(0o555)
    os.seteuid(65534 if os.geteuid() == 0 else os.geteuid())
    try:
        assert again(add()).code == first.code
        made = machine_code(add("other"))
    finally:
        os.seteuid(os.getuid())
        for path, mode in modes.items():
            path.chmod(mode)
    assert made.place is None
    (said,) = [r.getMessage() for r in caplog.records]
    assert "cannot be written ([Errno 13] Permission denied" in said


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_cache_that_others_can_write_to_is_not_used(compiler, cache, caplog, mode) -> None:
    machine_code(add())
    cache.chmod(mode)
    made = again(add())
    assert (made.place, compiler.count) == (None, 2)
    said = [r.getMessage() for r in caplog.records]
    what = "choose a folder of your own" if mode == 0o1777 else f"chmod go-w {cache}"
    reason = f"cache: nothing is read from {cache}: {cache} can be written by other users: {what}"
    assert said == [f"{reason}; kernels are kept in memory only"]


def test_a_cache_of_another_user_is_not_used(compiler, cache, monkeypatch) -> None:
    machine_code(add())
    monkeypatch.setattr(files.os, "geteuid", lambda: 12345)
    monkeypatch.setattr(Path, "stat", lambda self, **more: os.stat_result((0o40700, 0, 0, 0, 54321, 0, 0, 0, 0, 0)))
    assert files.writable_by_others(cache) == f"{cache} belongs to another user (uid 54321)"


def test_what_a_compiler_refused_is_kept_where_the_message_says(compiler, monkeypatch, cache) -> None:
    def refuse(source, folder):
        (folder / "add.cu").write_text(source.text)
        raise CompileFailed(f"add: it is wrong\n  source: {folder / 'add.cu'}\nall of it")

    monkeypatch.setattr(compiler, "compile", refuse, raising=False)
    for _ in range(2):
        with pytest.raises(CompileFailed) as caught:
            machine_code(add())
        first, second, third = str(caught.value).splitlines()
        path = Path(second.removeprefix("  source: "))
        assert (first, third) == ("add: it is wrong", "all of it")
        assert path.is_relative_to(cache / "failed")
        assert path.read_text() == add().text
    assert list((cache / "building").iterdir()) == []


def test_nothing_is_compiled_while_a_graph_is_captured(compiler, monkeypatch) -> None:
    kept = machine_code(add())
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert again(add()).code == kept.code
    with pytest.raises(CaptureRefused) as caught:
        machine_code(add("other"))
    assert str(caught.value) == (
        "other: it is not compiled yet for sm_90, and a graph is being captured; run the call once before the capture"
    )


def test_where_compiling_is_forbidden_the_error_has_the_prebuild_line(compiler, monkeypatch, cache) -> None:
    code = machine_code(add()).code
    monkeypatch.setenv("OPMUX_NO_JIT", "1")
    compiler.version = "99"
    assert again(add()).code == code  # by whatever compiler
    with pytest.raises(KernelMissing) as caught:
        machine_code(add("other", "sm_90a", backend="deepgemm", op="scaled_linear"))
    assert str(caught.value).splitlines() == [
        "other: no machine code for sm_90a, and OPMUX_NO_JIT forbids compiling",
        f"  cache:     {cache}",
        "  no bundle is named by OPMUX_BUNDLES",
        "  try:       opmux prebuild --arch sm_90 --backend deepgemm --op scaled_linear --shapes FILE --out DIR",
    ]
    assert issubclass(KernelMissing, BuildFailed)


def test_the_users_cache_is_where_the_system_keeps_caches(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("OPMUX_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "opmux" / "jit"


def test_an_entry_folder_that_cannot_be_made_costs_one_build(compiler, monkeypatch, caplog, cache) -> None:
    real = Path.mkdir

    def full(self, *arguments, **more):
        if self.name == "entry":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, *arguments, **more)

    monkeypatch.setattr(Path, "mkdir", full)
    made = machine_code(add())
    assert (made.place, compiler.count) == (None, 1)
    assert [r.getMessage() for r in caplog.records] == [
        f"the cache {cache} cannot be written ([Errno 28] No space left on device); kernels built by this process are "
        "not kept"
    ]


def test_a_build_that_another_process_does_not_end_is_done_here(compiler, monkeypatch, cache, caplog) -> None:
    key = machine_code(add()).key
    monkeypatch.setattr(store, "PATIENCE_S", 0.05)
    again_built = store.Store(cache)
    with filelock.FileLock(cache / "locks" / f"{key}.lock"):
        made = again_built.built(key, lambda folder: layers.compile_entry(add(), compiler, key, folder), again=True)
    assert made.builds == 2
    assert [r.getMessage() for r in caplog.records] == [
        f"kernel {key}: another process has been building it for 0 s; built here"
    ]


def test_a_build_that_takes_longer_than_others_wait_keeps_its_folder(compiler, monkeypatch, cache) -> None:
    """The one that waited in vain does not hold the lock, and so removes nothing of the one at work."""
    key = machine_code(add()).key
    monkeypatch.setattr(store, "PATIENCE_S", 0.2)
    shared, entered, release = store.Store(cache), threading.Event(), threading.Event()

    def slow(folder: Path) -> entry.Entry:
        (folder / "work").touch()
        entered.set()
        assert release.wait(60)
        assert (folder / "work").exists()
        return layers.compile_entry(add(), compiler, key, folder)

    with ThreadPoolExecutor() as threads:
        first = threads.submit(shared.built, key, slow, True)
        try:
            assert entered.wait(60)
            (at_work,) = (cache / "building").iterdir()
            other = shared.built(key, lambda folder: layers.compile_entry(add(), compiler, key, folder), again=True)
            assert other.place is not None
            assert list((cache / "building").iterdir()) == [at_work]
        finally:
            release.set()
    assert first.result().place == other.place


@pytest.fixture
def no_locks(monkeypatch) -> None:
    def acquire(self, **more):
        raise NotImplementedError("the file system has no locks")

    monkeypatch.setattr(filelock.FileLock, "acquire", acquire)


def test_where_the_file_system_has_no_locks_nothing_of_others_is_removed(compiler, cache, no_locks) -> None:
    first = machine_code(add())
    other = cache / "building" / f"{first.key}-1-abcd"
    other.mkdir(parents=True)
    shutil.rmtree(first.place or cache)
    assert again(add()).place == first.place
    assert other.exists()
    for done in (tending.prune(None, everything=True), tending.rebuild(everything=True)):
        assert (done.lines, done.problems) == (
            [],
            [
                f"cache: nothing is removed from {cache}: its file system has no locks, so a build may be going on; "
                "stop the processes that use the cache and remove the folder"
            ],
        )
    assert other.exists()
    assert again(add()).place == first.place


def test_a_kernel_in_the_cache_is_found_without_loading_the_compiler(compiler, cache, monkeypatch) -> None:
    """Loading NVRTC takes longer than everything else that a process does to find a kernel."""
    made = machine_code(add())

    def loaded(source: Source, name: str | None) -> None:
        raise AssertionError("the compiler was loaded")

    monkeypatch.setattr(layers, "likely_identity", lambda source, name: made.compiler)
    monkeypatch.setattr(layers, "choose", loaded)
    assert again(add()).code == made.code


def test_the_likely_compiler_is_that_which_is_chosen() -> None:
    likely = compilers.likely_identity(add(), None)
    assert likely in (compilers.identity(compilers.choose(add())), None)
    assert compilers.likely_identity(add(), "nvcc") is None
    assert compilers.likely_identity(add(arch="gfx942"), None) is None


def test_no_call_waits_for_a_kernel_that_is_built_in_the_background(compiler, cache) -> None:
    with override(build="background"):
        with pytest.raises(BuildDeferred) as caught:
            machine_code(add())
        build = caught.value.build
        assert (build.name, build.function) == ("kernel add", "opmux_jit.cache.layers:machine_code")
        assert compiler.count == 0
        with building_here():  # as in the helper process
            machine_code(*build.arguments)
        layers.forget()
        assert machine_code(add()).builds == 1
