"""The screen: panels of the node on the left, tuning on the right. The only room that imports textual."""
