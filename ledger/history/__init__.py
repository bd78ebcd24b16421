"""What became of a topic's key space: segments that split and merge again, over time.

- `record`  the reaches and turns of the river, out of the layouts on record
- `svg`     the river as a picture
"""
