"""Index scores over FP4 keys, candidate blocks, exact top-k.

On a GPU call `launch.index_scores` and `launch.select`; `reference` holds the same in plain torch.
"""
