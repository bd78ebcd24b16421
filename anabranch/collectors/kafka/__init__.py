"""The collector of scalable topics whose segments are Kafka topics (docs/clients.md "Load").

Our controller announces layouts, consumers and policies itself: this collector only adds the load. Stage: under
`anabranch serve collector kafka`. Each module may import only those above it:

- `rates`      rates of a segment from readings of its offsets; pure
- `topics`     topics and active segments, by Kafka's topics and the controller's layouts
- `segments`   active segments with their progress, and which call about them is due; pure
- `collector`  the loop: what is due is asked, and samples are sent
- `process`    its parts, assembled from the settings
"""
