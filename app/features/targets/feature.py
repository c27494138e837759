from dataloader.app.acts.feature import Feature

FEATURE = Feature(name="targets", task_calls={"draw_fence": "task_calls.draw_fence"})
