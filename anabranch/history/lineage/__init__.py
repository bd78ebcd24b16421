"""History of a topic's key space: segments that split and merge again, over time.

- `record`  the reaches and turns of the river, from the recorded layouts
- `svg`     the river as a picture
"""
