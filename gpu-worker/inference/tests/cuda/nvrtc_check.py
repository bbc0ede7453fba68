"""Compiles every kernel with NVRTC and prints what each needs of a streaming multiprocessor.

Needs no GPU: NVRTC comes from the nvidia-cuda-nvrtc wheel (kept in .cache/nvrtc), or from the folder that
NIGHTSHIFT_CUDA_LIBS names. What was compiled before is taken from the cache. Fails where a kernel does not
compile, or where a hot one spills.

    nvrtc_check.py --libraries
    nvrtc_check.py [--arch sm_80,sm_89,sm_90,sm_100] [--cache DIR] [--out DIR] [FILE.cu ...]
"""

import argparse
import ctypes
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

KERNELS = pathlib.Path(__file__).resolve().parents[2] / "kernels"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", KERNELS.parents[2] / "target"))
OPTIONS = ["-std=c++17", "--ptxas-options=-v"]
VENV = KERNELS.parents[2] / ".cache/nvrtc"
WHEEL = "nvidia-cuda-nvrtc==13.5.37"
ARCHES = "sm_80,sm_89,sm_90,sm_100"
# Kernels that a step spends its time in.
HOT = re.compile(r"gemm_|attend_|^norm_rows$|^rope_store$|^sample$")
# What ptxas says of a kernel, and the numbers that the table shows.
COMPILING = re.compile(r"Compiling entry function '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
STATIC_SHARED = re.compile(r"(\d+) bytes smem")


def library_folder():
    """Returns the folder of NVRTC: NIGHTSHIFT_CUDA_LIBS, or that of the wheel, which is installed if it is not there."""
    if folder := os.environ.get("NIGHTSHIFT_CUDA_LIBS"):
        return pathlib.Path(folder)
    pattern = "lib/python*/site-packages/nvidia/*/lib/libnvrtc.so*"
    if not list(VENV.glob(pattern)):
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        subprocess.run([VENV / "bin/pip", "install", "--quiet", WHEEL], check=True)
    return next(VENV.glob(pattern)).parent


def load_nvrtc():
    """Opens NVRTC."""
    return ctypes.CDLL(str(next(library_folder().glob("libnvrtc.so*"))))


def compile_once(nvrtc, path, arch, cache):
    """Returns what compile_kernel does, from `cache` where the same text was compiled before."""
    texts = [path.read_text(), *(header.read_text() for header in sorted(KERNELS.glob("*.cuh")))]
    version = (ctypes.c_int(), ctypes.c_int())
    nvrtc.nvrtcVersion(ctypes.byref(version[0]), ctypes.byref(version[1]))
    key = json.dumps([version[0].value, version[1].value, arch, OPTIONS, texts]).encode()
    stem = f"{path.stem}.{arch}.{hashlib.sha256(key).hexdigest()[:16]}"
    log_file, cubin_file = cache / f"{stem}.log", cache / f"{stem}.cubin"
    if not (log_file.exists() and cubin_file.exists()):
        cache.mkdir(parents=True, exist_ok=True)
        log, cubin = compile_kernel(nvrtc, path, arch)
        cubin_file.write_bytes(cubin)
        log_file.write_text(log)
    return log_file.read_text(), cubin_file.read_bytes()


def compile_kernel(nvrtc, path, arch):
    """Returns the compiler's log and the cubin."""
    headers = sorted(KERNELS.glob("*.cuh"))
    texts = (ctypes.c_char_p * len(headers))(*(header.read_bytes() for header in headers))
    names = (ctypes.c_char_p * len(headers))(*(header.name.encode() for header in headers))
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), path.read_bytes(), path.name.encode(), len(headers), texts, names
    )
    options = [f"--gpu-architecture={arch}", *OPTIONS]
    argv = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = nvrtc.nvrtcCompileProgram(program, len(options), argv)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    log = log.value.decode()
    if failed:
        sys.exit(f"{path.name} for {arch} does not compile:\n{log}")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return log, cubin.raw


def kernels_in(log):
    """Yields (name, registers, static shared bytes, spilled bytes) of each kernel of a log."""
    name, spilled = None, 0
    for line in log.splitlines():
        if match := COMPILING.search(line):
            name, spilled = match[1], 0
        elif match := SPILLS.search(line):
            spilled = int(match[2]) + int(match[3])
        elif (match := USED.search(line)) and name:
            shared = STATIC_SHARED.search(line)
            yield name, int(match[1]), int(shared[1]) if shared else 0, spilled
            name = None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default=ARCHES)
    parser.add_argument("--cache", type=pathlib.Path, default=TARGET / "nvrtc")
    parser.add_argument("--out", type=pathlib.Path, help="where to write FILE.ARCH.cubin")
    parser.add_argument("--libraries", action="store_true", help="print the folder of NVRTC, and no more")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    if args.libraries:
        print(library_folder())
        return
    arches = args.arch.split(",")
    nvrtc = load_nvrtc()
    table = {}
    for path in args.files or sorted(KERNELS.glob("*.cu")):
        for arch in arches:
            log, cubin = compile_once(nvrtc, path, arch, args.cache)
            if args.out:
                args.out.mkdir(parents=True, exist_ok=True)
                (args.out / f"{path.stem}.{arch}.cubin").write_bytes(cubin)
            for warning in re.findall(r".*warning.*", log):
                print(warning)
            for name, *numbers in kernels_in(log):
                table.setdefault(name, {})[arch] = numbers
    print(f"{'kernel':<28}" + "".join(f"{arch:>10}" for arch in arches) + f"{'shared':>9}")
    spilling = []
    for name, by_arch in table.items():
        cells = ""
        for arch in arches:
            registers, _, spilled = by_arch.get(arch, ("-", 0, 0))
            cells += f"{registers}{f'+{spilled}' if spilled else ''}".rjust(10)
            if spilled and HOT.search(name):
                spilling.append(f"{name} ({arch})")
        print(f"{name:<28}{cells}{max(numbers[1] for numbers in by_arch.values()):>9}")
    print(f"{len(table)} kernels, registers a thread (+ bytes spilled), static shared bytes")
    if spilling:
        sys.exit("hot kernels spill: " + ", ".join(spilling))


if __name__ == "__main__":
    main()
