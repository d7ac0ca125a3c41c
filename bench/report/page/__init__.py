"""``report.html``: one file that needs no network, with tables, figures and the step viewer.

`answers` is what the viewer shows, `chunks` how it is packed, `render` the page. The page's own
style and code lie beside them: ``page.html.jinja``, ``*.css``, ``*.js``.
"""
