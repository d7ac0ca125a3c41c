"""`bench paper`: figures, table, texts and references of one run or several, for one venue.

`layout` is what the venue and the user want, `table` the table and `caption` what stands above it,
`facts` what is known of the runs, `texts` the paragraph and the checklist, `citations` the BibTeX
entries, `write` all of it. A pure function of run folders; no torch here.
"""
