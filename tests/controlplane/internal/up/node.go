package up

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

const (
	nodeName  = "node-0"
	nodePath  = "/api/v1/nodes/" + nodeName
	leasePath = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" + nodeName
)

type node struct {
	Spec struct {
		Taints []struct{ Key string }
	}
	Status struct {
		Conditions []struct{ Type, Status string }
	}
}

// ensureNode makes the one Node of the cluster.
func ensureNode(ctx context.Context, admin api) error {
	body := map[string]any{
		"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{
			"name":   nodeName,
			"labels": map[string]string{"kubernetes.io/hostname": nodeName, "kubernetes.io/os": "linux", "type": "kwok"},
		},
	}
	err := admin.call(ctx, http.MethodPost, "/api/v1/nodes", body, nil)
	if isStatus(err, http.StatusConflict) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("failed to make the node: %w", err)
	}
	return nil
}

// dropLease lets a new kwok take the node at once. It has a new identity, and
// would else wait until the lease of the one before has run out.
func dropLease(ctx context.Context, admin api) error {
	err := admin.call(ctx, http.MethodDelete, leasePath, nil, nil)
	if err != nil && !isStatus(err, http.StatusNotFound) {
		return fmt.Errorf("failed to drop the node's lease: %w", err)
	}
	return nil
}

// nodeReady says whether Pods can be placed on the node and kwok looks after it.
// A taint says that the node lifecycle controller does not know yet.
func nodeReady(ctx context.Context, admin api) error {
	if err := admin.get(ctx, leasePath, nil); err != nil {
		return fmt.Errorf("the node has no lease: %w", err)
	}
	var node node
	if err := admin.get(ctx, nodePath, &node); err != nil {
		return fmt.Errorf("failed to read the node: %w", err)
	}
	if len(node.Spec.Taints) > 0 {
		return fmt.Errorf("the node has the taint %s", node.Spec.Taints[0].Key)
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == "Ready" && condition.Status == "True" {
			return nil
		}
	}
	return errors.New("the node is not Ready")
}

func isStatus(err error, status int) bool {
	var answer statusError
	return errors.As(err, &answer) && answer.status == status
}
