#!/usr/bin/env python3
"""Parquet files to loose JSON for stator preprocess: {"text": ...} on each line.

    parquet_to_jsonl.py IN.parquet... OUT.jsonl[.gz] [--text-column NAME]
                        [--columns instruction,input,output] [--batch-rows N]

The text is one column: the one given, or "text". A file without it that has the columns
instruction, (input) and output, as Alpaca's, gets its text made of them in Alpaca's form.
Streaming: memory holds one batch of rows, whatever the file's size. Rows without text
(null) are counted and left out. OUT appears only when it is complete.
Needs pyarrow (pip install pyarrow).
"""
import argparse
import glob
import gzip
import json
import os
import sys

WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides "
    "further context. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n{output}"
)
WITHOUT_INPUT = (
    "Below is an instruction that describes a task. Write a response that appropriately "
    "completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n{output}"
)


def stop(message):
    sys.exit("parquet_to_jsonl.py: " + message)


def text_of_row(row):
    """The text of one instruction, in Alpaca's form; None without an answer."""
    if row["instruction"] is None or row["output"] is None:
        return None
    form = WITH_INPUT if row.get("input") else WITHOUT_INPUT
    return form.format(**row)


def choose_columns(names, path, options):
    """What to read of a file, and whether it is one column of text."""
    if options.columns:
        columns = options.columns.split(",")
        if len(columns) != 3:
            stop("--columns takes three names: instruction,input,output")
    elif options.text_column or "text" in names:
        columns = [options.text_column or "text"]
    else:
        columns = [c for c in ("instruction", "input", "output") if c in names]
        if "instruction" not in columns or "output" not in columns:
            stop(f"{path} has the columns {', '.join(names)}: give --text-column NAME or "
                 "--columns INSTRUCTION,INPUT,OUTPUT")
    for column in columns:
        if column not in names:
            stop(f"{path} has no column '{column}'; it has {', '.join(names)}")
    return columns


def texts(parquet, path, options):
    """The texts of a file, row by row."""
    columns = choose_columns(parquet.schema_arrow.names, path, options)
    renamed = ["instruction", "input", "output"] if options.columns else columns
    for batch in parquet.iter_batches(batch_size=options.batch_rows, columns=columns):
        lists = [batch.column(c).to_pylist() for c in columns]
        if len(columns) == 1:
            yield from lists[0]
        else:
            for values in zip(*lists):
                yield text_of_row(dict(zip(renamed, values)))


def write_all(paths, out, options, parquet_file):
    rows = left_out = 0
    for path in paths:
        for text in texts(parquet_file(path), path, options):
            if text is None:
                left_out += 1
                continue
            if not isinstance(text, str):
                stop(f"{path}: the column holds {type(text).__name__}, not text")
            out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            rows += 1
            if rows % 100000 == 0:
                print(f"{rows} rows", file=sys.stderr)
    return rows, left_out


def main():
    words = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("input", nargs="+", help="parquet files or patterns")
    words.add_argument("output", help="OUT.jsonl or OUT.jsonl.gz")
    words.add_argument("--text-column")
    words.add_argument("--columns", help="names of the three: instruction,input,output")
    words.add_argument("--batch-rows", type=int, default=4096)
    options = words.parse_args()
    if options.columns and options.text_column:
        stop("--text-column and --columns exclude each other")
    if options.batch_rows < 1:
        stop("--batch-rows must be at least 1")
    if options.output.endswith(".parquet"):
        stop("the last word is the file to write, OUT.jsonl")
    try:
        import pyarrow.parquet
    except ImportError:
        stop("pyarrow is missing: pip install pyarrow")
    paths = []
    for pattern in options.input:
        found = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern))
        if not found:
            stop(f"no file is called {pattern}")
        paths += found

    part = options.output + ".tmp"
    packed = options.output.endswith(".gz")
    try:
        with (gzip.open if packed else open)(part, "wt", encoding="utf-8",
                                             newline="\n") as out:
            rows, left_out = write_all(paths, out, options, pyarrow.parquet.ParquetFile)
        os.replace(part, options.output)
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        stop(str(error))
    finally:
        if os.path.exists(part):
            os.unlink(part)
    print(f"{options.output}: {rows} rows, {left_out} without text left out")


if __name__ == "__main__":
    main()
