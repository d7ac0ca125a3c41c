"""Meanings of the fields of an answer's record, which the page of files and columns shows."""

FIELDS = {
    "kind": "`timing`, or `quality` for the untimed pass",
    "decoder": "the cell; AR's second arm is `ar@aa`",
    "family": "of the prompt",
    "conversation": "of the prompt",
    "turn": "of the conversation, from 1",
    "prompt_hash": "hash of the prompt's token ids",
    "num_prompt_tokens": "tokens of the prompt, earlier turns included",
    "repeat": "repeat r uses the run's seed + r",
    "seed": "the run's seed + `repeat`",
    "block": "block of timing; -1: the quality pass",
    "order": "the arm's position in its block",
    "attempt": "how often the run had been resumed",
    "batch_size": "sequences at once",
    "tokens": "ids, with EOS",
    "text": "text up to EOS",
    "stop": "`eos` or `length`",
    "num_behind": "tokens after the first EOS, which `--fixed-length` ignores; null if there are "
    "none",
    "steps": "columns of the table below; `steps_NAME` in samples.parquet",
    "ttft_s": "seconds from the request's start to the first token, at batch size 1",
    "total_s": "seconds from the request's start to the last token, at batch size 1",
    "group_s": "at larger batch sizes the makespan of the whole group, in each of its rows",
    "peak_memory_bytes": "peak memory of timed answers",
    "energy_j": "joules of the device during a timed answer; in a group, an equal share of the "
    "group's joules; null where no counter can be read",
    "scores": "of a scored answer: `exact_number`, `contains_answer`, `f1`, `bleu`, …; "
    "`score_NAME` in samples.parquet",
    "nll": "mean over the tokens of a quality answer, for `base_nll`",
    "agreement": "mean over the tokens of a quality answer, for `base_agreement`",
    "entropy": "mean over the tokens of a quality answer, for `base_entropy`",
    "recounted": "AR's length as Spec-Bench counts it, under `--protocol specbench`",
    "error": "the error in one line; such a record has no measurements",
    "error_at": "line of the decoder's file that raised the error or was running: `longest.py:39`",
    "drafters": "names of the drafters whose drafts were accepted, if several drafted (`hybrid`)",
    "worker": "worker that measured the answer, if there are several",
    "node": "hash of the name of that worker's machine",
    "machine": "in a merged run the comparability key of its part ([cluster](cluster.md))",
    "schema": "version of the record",
    "steps_emitted": "tokens of the step",
    "steps_drafted": "drafts that the step verified, on all branches",
    "steps_accepted": "drafts that the target confirmed",
    "steps_target_calls": "calls of the target",
    "steps_target_rows": "rows of these calls",
    "steps_draft_calls": "calls of the draft model, of named models and of drafters' networks",
    "steps_draft_rows": "rows of these calls",
    "steps_passes": "passes of the block that the step finished, 0 if it finished none; empty if "
    "no blocks are refined",
    "steps_depth": "most drafts of the step that could be accepted (a tree's longest path); empty "
    "if all drafts are chains",
    "steps_source": "for each accepted draft the index of its drafter in `drafters`; empty if "
    "there was one drafter",
    "steps_confidence": "for each draft whose parents were all accepted, twice its confidence in "
    "127ths, plus 1 if it was accepted (239: 0.937, accepted), by position in the step, an "
    "accepted draft behind its siblings; for the [calibration](metrics.md#calibration-of-drafts); "
    "empty if the drafter gives no probabilities",
    "steps_undrafted": "tokens of the step before its drafts; empty if no step has any",
    "steps_tested": "tested drafts, of [`overlap`](metrics.md#parallel-decoding); empty if no "
    "distributions were compared",
    "steps_overlap": "sum for [`overlap`](metrics.md#parallel-decoding); likewise",
    "steps_alpha": "sum for [`alpha_all`](metrics.md#parallel-decoding); likewise",
    "steps_rejected": "ids of the rejected drafts, at most 32 of a step and 1024 of an answer "
    "(their number is drafted - accepted); empty if none was rejected or the decoder does not "
    "report them",
    "steps_decided": "for each token the pass of its block that decided it, 0 if the target itself "
    "gave it; empty if nothing is predicted in passes",
    "steps_ended_s": "seconds from the request's start to the end of the step, for timed answers "
    "at batch size 1; that of the first step with a token is `ttft_s`. Those after step 0 are read "
    "without waiting for the device. `samples.parquet` has `steps_lasted_us` instead: whole "
    "microseconds from the end of the step before",
}
