"""The page of a job, without scripts."""

from __future__ import annotations

import re

import pytest


def test_refused_edit_marks_its_fields(client, trigger):
    job_id = trigger()

    refused = client.post(f"/jobs/{job_id}/edit", data={"version": "1", "priority": "soon", "args": '{"a": '})

    assert refused.status_code == 422
    assert f'action="/jobs/{job_id}/edit"' in refused.text
    field = re.search(r'<input name="priority"[^>]*>', refused.text)
    assert field is not None
    assert 'aria-invalid="true" aria-describedby="submit_job_edit-priority-error" value="soon"' in field[0]
    assert "&#39;soon&#39; is not a whole number" in refused.text
    assert "{&#34;a&#34;: </textarea>" in refused.text  # what was entered


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        ({"version": "1", "priority": "1" * 1001}, 422, 'id="submit_job_edit-priority-error"'),
        ({"version": "1", "colour": "red"}, 422, "Colour"),
        ({"version": "1", "priority": "3"}, 409, "has changed"),
    ],
)
def test_refused_edit_renders_the_job(client, trigger, data, status, message):
    job_id = trigger()

    refused = client.post(f"/jobs/{job_id}/edit", data=data)

    assert (refused.status_code, message in refused.text) == (status, True)
    assert f'action="/jobs/{job_id}/edit"' in refused.text


def test_retry_of_queued_job_is_refused_on_its_page(client, trigger):
    job_id = trigger()

    refused = client.post(f"/jobs/{job_id}/retry")

    assert (refused.status_code, 'id="refused"' in refused.text) == (409, True)
    assert "is queued" in refused.text
    assert f'hx-get="/jobs/{job_id}"' in refused.text  # not the address of the form
