"""The harness: configuration, measurement, statistics and reports. See docs/metrics.md."""
