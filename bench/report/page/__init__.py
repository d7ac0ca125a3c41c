"""``report.html``: one file that needs no network, with tables, figures and the step viewer.

`answers` makes the viewer's data, and `render` fills the templates. Templates, style and code of
the pages are in the same folder: ``*.jinja``, ``*.j2``, ``*.css``, ``*.js``.
"""
