#!/usr/bin/env python3
"""Installs any torch release, for any CPython, as a CPU-only one, without its gigabytes of CUDA.

    slimtorch VERSION PYTHON            into the site-packages of that interpreter (a venv's)
    slimtorch VERSION TAG DIRECTORY     e.g. `slimtorch 2.7.0 cp311 deps/torch27`; then put DIRECTORY on PYTHONPATH

The registry has CUDA builds only. A wheel is a zip file, so the CUDA libraries in it are never downloaded (byte ranges of the
rest are: 150 to 250 MB instead of several GB), and the shared libraries that torch is linked with but never calls on the CPU
become small stubs made with gcc. Tests of CPU code pass as on a CPU build; nothing here is for production. Also needs:
pip install filelock typing-extensions sympy networkx jinja2 fsspec setuptools numpy.
"""
from __future__ import annotations

import collections
import concurrent.futures
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile

SKIP = re.compile(
    r"torch/lib/(libtorch_cuda\.so|libtorch_cuda_linalg\.so|libtorch_nvshmem\.so)|torch/bin/(protoc|test_|.*Test)|torch/test/"
    r"|.*\.(a|lib)$"
)
SHARED = [
    ".balign 16", "slim_info: .quad _ZTVN10__cxxabiv117__class_type_infoE+16, 9f", '9: .asciz "9slim_stub"', ".balign 16",
    "slim_table: .quad 0, slim_info", ".rept 64", ".quad slim_stub", ".endr",
]


def run(*command):
    """What a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Remote(io.RawIOBase):
    """A file on the registry, read by byte ranges."""

    def __init__(self, url):
        self.url, self.pos = url, 0
        head = urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=60)
        self.size = int(head.headers["content-length"])
        self.tail_at = self.size - min(self.size, 4 << 20)
        self.tail = self.get(self.tail_at, self.size)

    def get(self, a, b):
        """The bytes from ``a`` to ``b``."""
        for attempt in range(4):
            try:
                request = urllib.request.Request(self.url, headers={"Range": f"bytes={a}-{b - 1}"})
                return urllib.request.urlopen(request, timeout=180).read()
            except OSError:
                if attempt == 3:
                    raise
                time.sleep(2 * attempt + 1)

    def seekable(self):
        """As a file."""
        return True

    def readable(self):
        """As a file."""
        return True

    def tell(self):
        """As a file."""
        return self.pos

    def seek(self, offset, whence=0):
        """As a file."""
        self.pos = {0: 0, 1: self.pos, 2: self.size}[whence] + offset
        return self.pos

    def read(self, n=-1):
        """As a file."""
        a, b = self.pos, self.size if n < 0 else min(self.size, self.pos + n)
        data = self.tail[a - self.tail_at:b - self.tail_at] if a >= self.tail_at else self.get(a, b)
        self.pos = b
        return data

    def readinto(self, buffer):
        """As a file."""
        data = self.read(len(buffer))
        buffer[:len(data)] = data
        return len(data)


def url_of(version, tag):
    """Where pip would take the wheel from."""
    with tempfile.TemporaryDirectory() as t:
        report = os.path.join(t, "report.json")
        run(sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--no-deps", "--only-binary=:all:",
            "--python-version", f"3.{tag[3:]}", "--target", os.path.join(t, "x"), "--report", report, f"torch=={version}")
        return json.load(open(report))["install"][0]["download_info"]["url"]


def download(url, path):
    """Write a wheel to a file with a hole for each member that is not wanted; returns the bytes taken and the size."""
    remote = Remote(url)
    archive = zipfile.ZipFile(remote)
    infos = sorted(archive.infolist(), key=lambda m: m.header_offset)
    spans = []
    for m, end in zip(infos, [*(m.header_offset for m in infos[1:]), archive.start_dir], strict=True):
        if SKIP.match(m.filename):
            continue
        if spans and m.header_offset - spans[-1][1] < 100_000:
            spans[-1][1] = end
        else:
            spans.append([m.header_offset, end])
    spans.append([archive.start_dir, remote.size])
    parts = [(a, min(a + (16 << 20), e)) for s, e in spans for a in range(s, e, 16 << 20)]
    with open(path, "wb") as f:
        f.truncate(remote.size)
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            for (a, b), data in zip(parts, pool.map(lambda p: remote.get(*p), parts), strict=True):
                assert len(data) == b - a, (a, b, len(data))
                f.seek(a)
                f.write(data)
    return sum(b - a for a, b in parts), remote.size


def needed(lib):
    """The shared libraries that a library is linked with."""
    return re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-dW", str(lib)))


def symbols(lib):
    """Undefined {(name, version)}, defined {name}."""
    undefined, defined = set(), set()
    for line in run("readelf", "--dyn-syms", "-W", str(lib)).splitlines():
        p = line.split()
        if len(p) < 8 or not p[0].endswith(":"):
            continue
        name, _, version = p[7].partition("@")
        if p[6] == "UND":
            if p[4] != "WEAK" and name:
                undefined.add((name, version.lstrip("@")))
        else:
            defined.add(name)
    return undefined, defined


def version_files(lib):
    """For each symbol version that a library asks for, the library that has it."""
    found, file = {}, None
    for line in run("readelf", "-VW", str(lib)).splitlines():
        if m := re.search(r"File: (\S+)", line):
            file = m[1]
        elif (m := re.search(r"Name: (\S+)\s+Flags", line)) and file:
            found[m[1]] = file
    return found


def stub(lib, name, syms):
    """A shared library `name` that has the symbols and does nothing."""
    data, text = [], []
    for s in syms:
        if s.startswith("_ZTI"):
            data.append(f'.globl {s}\n.type {s},@object\n.balign 16\n{s}: .quad _ZTVN10__cxxabiv117__class_type_infoE+16\n'
                        f'.quad 9f\n.size {s},16\n9: .asciz "{s[4:]}"')
        elif s.startswith("_ZTV"):
            data.append(f".globl {s}\n.type {s},@object\n.balign 16\n{s}: .quad 0, slim_info\n.rept 64\n.quad slim_stub\n"
                        f".endr\n.size {s},528")
        elif s.startswith("_ZTS"):
            data.append(f'.globl {s}\n.type {s},@object\n{s}: .asciz "{s[4:]}"\n.size {s},{len(s) - 3}')
        elif re.search(r"C[12]E", s):  # a constructor: leaves an object whose methods do nothing
            zero = "\n".join(f"movq $0, {n}(%rdi)" for n in (8, 16, 24, 32)) if "Options" in s else ""
            text.append(f".globl {s}\n.type {s},@function\n{s}: lea slim_table+16(%rip), %rax\nmov %rax, (%rdi)\n{zero}\n"
                        "mov %rdi, %rax\nret")
        elif name == "libtorch_cuda.so":  # may return a reference, which static initialisers write to
            text.append(f".globl {s}\n.type {s},@function\n{s}: lea 8f(%rip), %rax\nret\n.pushsection .bss\n.balign 16\n"
                        "8: .zero 256\n.popsection")
        else:
            text.append(f".globl {s}\n.type {s},@function\n.set {s}, slim_stub")
    source = "\n".join(['.section .note.GNU-stack,"",@progbits', ".text", ".balign 16", ".type slim_stub,@function",
                        "slim_stub: mov $100, %eax", "ret", *text, ".data", *data,
                        *(SHARED if name == "libtorch_cuda.so" else [])]) + "\n"
    with tempfile.TemporaryDirectory() as t:
        a, m = pathlib.Path(t, "s.s"), pathlib.Path(t, "s.map")
        a.write_text(source)
        versions = collections.defaultdict(list)
        for s, v in syms.items():
            versions[v].append(s)
        named = {v: s for v, s in versions.items() if v}
        m.write_text("".join(f'{v} {{ global: {"; ".join(s)}; }};\n' for v, s in named.items()))
        command = ["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{name}", "-o", str(lib / name), str(a)]
        if named:
            command.append(f"-Wl,--version-script={m}")
        if name == "libtorch_cuda.so":
            command.append("-lstdc++")
        subprocess.run(command, check=True)


def make_stubs(torch):
    """Write the shared libraries that torch is linked with and that are not there."""
    lib = torch / "lib"
    ours = [*(p for p in lib.iterdir() if ".so" in p.name), *torch.glob("_C*.so"), *torch.parent.glob("functorch/*.so")]
    have = {p.name for p in ours}
    cache = run("/sbin/ldconfig", "-p").splitlines()
    system = {line.split()[0] for line in cache[1:]}
    want, undefined, defined = set(), collections.defaultdict(set), set()
    for p in ours:
        for n in needed(p):
            if n not in have and (n not in system or re.match("lib(cu|nv|nccl)", n)) and not n.startswith("ld-linux"):
                want.add(n)
        u, d = symbols(p)
        defined |= d
        files = version_files(p)
        for name, version in u:
            undefined[name].add((files.get(version), version))
    place = collections.defaultdict(dict)
    for name, refs in undefined.items():
        for file, version in refs if name not in defined else ():
            if file in want:
                place[file][name] = version
            elif file is None:
                place["libtorch_cuda.so"][name] = ""
    known = set()
    for base in ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1",
                 "ld-linux-x86-64.so.2"):
        for line in cache:
            if line.split()[0] == base and "x86-64" in line:
                known |= symbols(line.split("=> ")[1])[1]
                break
    for name in list(place["libtorch_cuda.so"]):
        if name in known or re.match(r"_?Py", name):
            del place["libtorch_cuda.so"][name]
    for name in want:
        stub(lib, name, place.get(name, {}))


def as_cpu(torch):
    """Let Python code that asks see a build without CUDA."""
    v = torch / "version.py"
    v.write_text(re.sub(r"(cuda\S* ?.*)= '[\d.]+'", r"\1= None", re.sub(r"\+cu\d+", "+cpu", v.read_text())))
    b = torch / "backends/cuda/__init__.py"
    b.write_text(b.read_text().replace("return torch._C._has_cuda", "return False"))


def main(version, python, target=None):
    """Install a release."""
    if target:
        tag, site = python, pathlib.Path(target)
        site.mkdir(parents=True, exist_ok=True)
    else:
        site = pathlib.Path(run(python, "-c", 'import sysconfig;print(sysconfig.get_path("platlib"))').strip())
        tag = run(python, "-c", 'import sys;print("cp%d%d"%sys.version_info[:2])').strip()
    begun = time.time()
    url = url_of(version, tag)
    if url.startswith("file:"):  # pip found a CPU build in a local directory
        into = ["--target", str(site)] if target else []
        run(python if not target else sys.executable, "-m", "pip", "install", "-q", "--no-deps", *into, url)
        return
    with tempfile.TemporaryDirectory(dir=os.environ.get("SLIM_TMP")) as t:
        wheel = pathlib.Path(t, url.rsplit("/", 1)[1].partition("#")[0])
        got, size = download(url, wheel)
        with zipfile.ZipFile(wheel) as archive:
            for m in archive.infolist():
                if not SKIP.match(m.filename):
                    archive.extract(m, site)
    make_stubs(site / "torch")
    as_cpu(site / "torch")
    meta = next(site.glob(f"torch-{version}*.dist-info")) / "METADATA"
    kept = (x for x in meta.read_text().split("\n") if not re.match(r"Requires-Dist: (nvidia|triton|cuda)", x))
    meta.write_text("\n".join(kept))
    if not target:  # as pip does: where Python may not write bytecode, each process would compile torch anew
        run(python, "-m", "compileall", "-q", str(site / "torch"))
    print(f"torch {version} for {tag}: {got / 1e6:.0f} of {size / 1e6:.0f} MB downloaded, {time.time() - begun:.0f} s")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
