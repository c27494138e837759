from __future__ import annotations


def test_votes_are_counted(client):
    assert client.post("/api/v1/feedback/like").json == {"likes": 1, "dislikes": 0}
    assert client.post("/api/v1/feedback/like", data=b"anything").json == {"likes": 2, "dislikes": 0}
    assert client.post("/api/v1/feedback/dislike", json={}).json == {"likes": 2, "dislikes": 1}

    result = client.get("/metrics").text
    assert 'feedback_total{vote="like"} 2.0' in result
    assert 'feedback_total{vote="dislike"} 1.0' in result
