#!/usr/bin/env python3
"""Changes files of every kind that stator reads, each with its checksums made right again,
and compares what the program says of them with readers that share no code with it: it must
refuse (exit code 2 to 5 and a message; no crash, no report of a sanitizer, no time-out) or
read exactly what the other reader reads.

    mutants.py READ [--count N] [--seed S] [--kind K] [--only NUMBER] [--jobs J]

READ is the program mutants_read of a build. Mutant NUMBER of a seed is always the same.
A finding is printed with what both said, and its files are kept in $TMPDIR."""
import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import kinds # noqa: E402
from readers import Bad # noqa: E402

CODES = (2, 3, 4, 5)
SANITIZERS = {"ASAN_OPTIONS": "detect_leaks=0:exitcode=99:allocator_may_return_null=1:"
                              "max_allocation_size_mb=1024",
              "UBSAN_OPTIONS": "print_stacktrace=1:exitcode=99", "STATOR_CACHE": "off"}


class Work:
    """A folder for files, and the program that reads them."""

    def __init__(self, program):
        self.folder = tempfile.mkdtemp(prefix="stator-mutants-")
        self.n = 0
        self.program = subprocess.Popen([program], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE,
                                        env=os.environ | SANITIZERS)

    def file(self, name, data):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(data)
        return path

    def write(self, files):
        """To a new folder, whose path it returns."""
        self.n += 1
        os.mkdir(os.path.join(self.folder, str(self.n)))
        for name, data in files.items():
            self.file(f"{self.n}/{name}", data)
        return os.path.join(self.folder, str(self.n))

    def tell(self, kind, path, more):
        self.program.stdin.write(f"{kind}\t{path}\t{more}\n".encode())
        self.program.stdin.flush()

    def answer(self):
        """Verdict (ok, refused, signal), its number, text."""
        words = self.program.stdout.readline().split()
        if not words:
            raise SystemExit("mutants: the reading program ended")
        text = self.program.stdout.read(int(words[-1])).decode("utf-8", "replace")
        return words[0].decode(), int(words[1]) if len(words) == 3 else 0, text

    def ask(self, kind, path, more):
        self.tell(kind, path, more)
        verdict, code, text = self.answer()
        if verdict != "ok":
            raise SystemExit(f"mutants: {kind} {path}: {verdict} {code}: {text}")
        return text

    def close(self):
        self.program.stdin.close()
        self.program.wait()
        shutil.rmtree(self.folder)


def judge(said, want, limits):
    """What is wrong, or None. want: a text, a function, or a Bad."""
    verdict, code, text = said
    if verdict == "signal" or verdict == "refused" and code not in CODES:
        return f"{verdict} {code}"
    if verdict == "refused":
        if not text.strip():
            return "refused without a message"
        if isinstance(want, Bad) or limits:
            return None
        return "refused, but good"
    if isinstance(want, Bad):
        return "taken, but bad"
    if callable(want):
        return want(text)
    return None if want == text else "read as something else"


class Run:
    def __init__(self, options, work):
        self.seed, self.work, self.counts = options.seed, work, {}
        self.all = [k() for k in kinds.ALL]
        if options.kind:
            self.all = [k for k in self.all if k.name == options.kind]
        for k in self.all:
            k.prepare(work)
        self.turn = [k for k in self.all for _ in range(k.share)]

    def count(self, kind, what):
        row = self.counts.setdefault(kind, dict(refused=0, same=0, findings=0))
        row[what] += 1

    def one(self, kind, label, files):
        """Writes, asks both, compares."""
        folder = self.work.write(files)
        self.work.tell(kind.reader, *kind.ask(folder))
        limits = []
        try:
            want = kind.read(files, limits)
        except Bad as e:
            want = e
        said = self.work.answer()
        wrong = judge(said, want, limits)
        self.count(kind.name, "findings" if wrong else
                   "refused" if said[0] == "refused" else "same")
        if wrong:
            self.tell(kind, label, files, wrong, said, want, limits)
        shutil.rmtree(folder)

    def tell(self, kind, label, files, wrong, said, want, limits):
        name = f"stator-mutant-{kind.name}-{self.seed}-{label}"
        kept = os.path.join(tempfile.gettempdir(), name)
        shutil.rmtree(kept, ignore_errors=True)
        for file, data in files.items():
            path = os.path.join(kept, file)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as f:
                f.write(data)
        reader = (f"bad: {want}" if isinstance(want, Bad) else
                  "good" if callable(want) else str(want)[:1500])
        print(f"FAIL {kind.name}, seed {self.seed}, mutant {label}: {wrong}\n  kept: {kept}\n"
              f"  stator: {said[0]} {said[1]}: {said[2][:3000]}\n  reader: {reader}"
              f"{' (may be refused: ' + ', '.join(limits) + ')' if limits else ''}",
              flush=True)

    def mutant(self, number):
        kind = self.turn[number % len(self.turn)]
        rng = random.Random(f"{self.seed} {kind.name} {number}")
        try:
            self.one(kind, number, kind.mutant(rng))
        except Exception:
            print(f"FAIL {kind.name}, seed {self.seed}, mutant {number}: cannot be judged",
                  flush=True)
            raise

    def goods(self):
        for kind in self.all:
            for i, files in enumerate(kind.goods()):
                self.one(kind, f"good-{i}", files)


def run_part(options):
    """The mutants of one process; the last line has the counts."""
    work = Work(options.read)
    try:
        run = Run(options, work)
        if options.only is not None:
            run.mutant(options.only)
        else:
            if options.part == 0:
                run.goods()
            for number in range(options.part, options.count, options.jobs):
                run.mutant(number)
    finally:
        work.close()
    print("counts " + repr(run.counts))
    return 0


def run_all(options):
    start, total, whole = time.monotonic(), {}, True
    command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:]]
    parts = [subprocess.Popen(command + ["--part", str(i), "--jobs", str(options.jobs)],
                              stdout=subprocess.PIPE, text=True)
             for i in range(options.jobs)]
    for p in parts:
        last = ""
        for last in p.stdout:
            if not last.startswith("counts "):
                print(last, end="")
        whole = whole and p.wait() == 0 and last.startswith("counts ")
        for kind, row in (eval(last[7:]) if last.startswith("counts ") else {}).items():
            for what, n in row.items():
                total.setdefault(kind, {}).setdefault(what, 0)
                total[kind][what] += n
    print(f"{'':12} {'refused':>8} {'same':>8} {'findings':>8}")
    for kind, row in total.items():
        print(f"{kind:12} {row['refused']:8} {row['same']:8} {row['findings']:8}")
    passed = sum(r["refused"] + r["same"] for r in total.values())
    failed = sum(r["findings"] for r in total.values()) + (not whole)
    print(f"{time.monotonic() - start:.1f} s, seed {options.seed}")
    print(f"mutants: {passed} passed, {failed} failed, 0 skipped")
    return failed != 0


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("read")
    p.add_argument("--count", type=int, default=500)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--kind", choices=[k.name for k in kinds.ALL])
    p.add_argument("--only", type=int)
    p.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--part", type=int, help=argparse.SUPPRESS)
    options = p.parse_args()
    options.read = os.path.abspath(options.read)
    if options.part is not None or options.only is not None:
        return run_part(options)
    return run_all(options)


if __name__ == "__main__":
    sys.exit(main())
