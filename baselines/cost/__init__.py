"""What trainings and rankings of full size cost, counted on fake tensors: no weights, no card, seconds on a CPU.

``training_cost`` (training.py) is one training: floating-point operations, steps, and the memory of each card;
``encoding_cost`` and ``reranking_cost`` (ranking.py) are texts through a trained model. cards.py turns operations into
hours. What is counted is what the code does: the recipe's loss, the libraries' models, the passes that gradient caching
adds. What is not: loading and tokenising, elementwise arithmetic, the time that cards wait for each other.
"""
