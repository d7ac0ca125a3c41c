"""Sections of the report, each with its statistics, tables, figures and data in one module."""
