"""Released models, driven by the prompt code of their own repositories: one file a model.

    o1.py            Orchestra-o1-8B             orchestrator.py   Orchestrator-8B
    aorchestra.py    AOrchestra's prompted one   mas.py            the MAS-Orchestra checkpoints

Each file has functions that run in a process of their own, next to a clone of the repository
(clone.py), and a Method that calls them. docs/released-models.md says what is equal.
"""
