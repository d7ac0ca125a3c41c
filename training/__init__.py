"""What makes the zoo and adapters: ``bench train``, ``bench import``.

The files here are shared by all training. Folders on floors: text; zoo and adapter; inverse;
importers stand beside. ``recipes/`` holds every hyper-parameter.
"""
