package up

import (
	"encoding/base64"
	"fmt"
	"strings"
)

// user is an identity in the API server's token file. Parts have one each, with
// the names that Kubernetes' own roles are bound to, so that the audit log and
// authorization see what they would see in a real cluster.
type user struct {
	name, group, token string
}

// supervisor is our own identity: what we ask must not look like the admin's.
const supervisor = "controlplane-up"

// users are all identities, by who uses them.
func users() map[string]user {
	return map[string]user{
		"admin":           {"admin", "system:masters", randomToken()},
		supervisor:        {supervisor, "system:masters", randomToken()},
		controllerManager: {"system:kube-controller-manager", "", randomToken()},
		scheduler:         {"system:kube-scheduler", "", randomToken()},
		kwok:              {"kwok", "system:masters", randomToken()},
	}
}

func tokenFile(users map[string]user) []byte {
	var lines strings.Builder
	for _, user := range users {
		fmt.Fprintf(&lines, "%s,%s,%s,%q\n", user.token, user.name, user.name, user.group)
	}
	return []byte(lines.String())
}

func kubeconfig(server string, ca []byte, user user) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: controlplane
  cluster:
    server: %s
    certificate-authority-data: %s
contexts:
- name: controlplane
  context:
    cluster: controlplane
    user: %[3]s
current-context: controlplane
users:
- name: %[3]s
  user:
    token: %s
`, server, base64.StdEncoding.EncodeToString(ca), user.name, user.token)
}
