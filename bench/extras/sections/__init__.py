"""Make sections of the report, each with statistics, tables, figures and data in one module."""
