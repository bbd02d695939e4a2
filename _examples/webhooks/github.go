package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/watermill-once/dedupe"
	"github.com/watermill-once/watermill-once/ordering"
)

// githubSource reads deliveries as GitHub makes them, one JSON object a line: {"delivery_id": .., "event": .., "payload": ..}.
// GitHub gives its events no other id than the delivery's, and a redelivery keeps it.
//
// A "card" is whatever an event is about (an issue, a run, a branch), its status the event's name and action, and the amount
// the size of the payload.
var githubSource = source{
	eventID:   dedupe.JSONField("delivery_id"),
	eventType: githubEvent,
	position:  githubPosition,
	read: func(body []byte) (change, error) {
		var event struct {
			Event   string          `json:"event"`
			Payload json.RawMessage `json:"payload"`
		}
		var payload struct {
			Action string `json:"action"`
		}
		if err := errors.Join(json.Unmarshal(body, &event), json.Unmarshal(event.Payload, &payload)); err != nil {
			return change{}, err
		}
		status := event.Event
		if payload.Action != "" {
			status += "." + payload.Action
		}
		return change{Status: status, Amount: int64(len(event.Payload))}, nil
	},
}

// githubPositions holds, for each event whose payload tells when its object changed, the object and that time. A time must never go
// back from one event of an object to the next: updated_at does not. created_at says nothing about a change, and "the first of
// closed_at and created_at that is there" would make a reopened alert older than its closing.
var githubPositions = map[string]ordering.PositionFunc{
	"branch_protection_rule":      at("rule.id", "rule.updated_at"),
	"check_run":                   at("check_run.id", "check_run.check_suite.updated_at"), // has no time of its own; its suite changes with it
	"check_suite":                 at("check_suite.id", "check_suite.updated_at"),
	"code_scanning_alert":         at("alert.number", "alert.updated_at"),
	"commit_comment":              at("comment.id", "comment.updated_at"),
	"dependabot_alert":            at("alert.number", "alert.updated_at"),
	"deployment":                  at("deployment.id", "deployment.updated_at"),
	"deployment_review":           at("workflow_run.id", "workflow_run.updated_at"),
	"deployment_status":           at("deployment.id", "deployment_status.updated_at"), // each one is the deployment's next status
	"discussion":                  at("discussion.id", "discussion.updated_at"),
	"discussion_comment":          at("comment.id", "comment.updated_at"),
	"issue_comment":               at("comment.id", "comment.updated_at"),
	"issues":                      at("issue.id", "issue.updated_at"),
	"meta":                        at("hook_id", "hook.updated_at"),
	"milestone":                   at("milestone.id", "milestone.updated_at"),
	"package":                     at("package.id", "package.updated_at"),
	"page_build":                  at("id", "build.updated_at"),
	"ping":                        at("hook_id", "hook.updated_at"),
	"project":                     at("project.id", "project.updated_at"),
	"project_card":                at("project_card.id", "project_card.updated_at"),
	"project_column":              at("project_column.id", "project_column.updated_at"),
	"projects_v2_item":            at("projects_v2_item.id", "projects_v2_item.updated_at"),
	"pull_request":                at("pull_request.id", "pull_request.updated_at"),
	"pull_request_review":         at("review.id", "pull_request.updated_at"), // submitted_at stays when a review is dismissed
	"pull_request_review_comment": at("comment.id", "comment.updated_at"),
	"push":                        at("ref", "repository.pushed_at").WithUnixTime(time.Second), // a number here, and text elsewhere
	"repository":                  at("repository.id", "repository.updated_at"),
	"security_advisory":           at("security_advisory.ghsa_id", "security_advisory.updated_at"),
	"status":                      at("id", "updated_at"),
	"workflow_job":                at("workflow_job.id", "workflow_job.started_at"), // set again when the job leaves the queue
	"workflow_run":                at("workflow_run.id", "workflow_run.updated_at"),
}

func at(object, changed string) ordering.PositionFunc {
	return ordering.JSONFields("payload."+object, "payload."+changed)
}

var (
	githubEvent      = dedupe.JSONField("event")
	githubAction     = dedupe.JSONField("payload.action")
	githubRepository = dedupe.JSONField("payload.repository.id")
)

// githubPosition finds the object, and the time by the second: of two changes in one second, a last one wins over any other, and
// others are applied as they come.
//
// Many events tell no time of change (a star taken back, a label renamed, a team's new member), and some have it only now and
// then. Such an event stands for itself: it is applied once and leaves its own row, and is neither newer nor older than another.
// What it means for an object that others change too cannot be told from it; who needs that asks GitHub's API for the state.
func githubPosition(msg *message.Message) (ordering.Position, error) {
	event, err := githubEvent(msg)
	if err != nil {
		return ordering.Position{}, err
	}
	if find, known := githubPositions[event]; known {
		position, err := find(msg)
		if err == nil {
			// Numbers and refs are a repository's own, and ids those of one kind of object. Some events belong to no repository.
			repository, _ := githubRepository(msg)
			position.Entity = event + "/" + repository + "/" + position.Entity
			if action, _ := githubAction(msg); action == "deleted" || event == "workflow_job" && action == "completed" {
				position.TieBreak = "last"
			}
			return position, nil
		}
	}
	id, err := dedupe.JSONField("delivery_id")(msg)
	if err != nil {
		return ordering.Position{}, err
	}
	return ordering.Position{Entity: fmt.Sprintf("%s//%s", event, id)}, nil
}
