"""The harness: plans, measures, judges and reports runs of decoders.

Folders stand on floors; each imports only those before it: text, errors, progress, settings,
records, machine, stats, plan, measure, report, verify, compare, ab, run, cli.
"""
